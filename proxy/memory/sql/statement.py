"""What is asked of either database, in words that both understand.

Ids are bytes there: any text is an id, NUL and half characters included, and all databases sort alike.
"""

import re
from collections.abc import Mapping
from typing import Final

from proxy.memory.store import Key

Arguments = Mapping[str, object]

_PARAMETER = re.compile(r"(?<!:):([a-z]+)")
_THIS = "tenant = :tenant AND session = :session"
_UNCHANGED = f"{_THIS} AND version = :version AND expires > :now"


class Statement:
    """SQL with parameters by name (``:name``, for SQLite) and by number (``$1``, for PostgreSQL)."""

    __slots__ = ("_order", "named", "numbered")

    def __init__(self, named: str) -> None:
        self.named = named
        self._order = tuple(dict.fromkeys(_PARAMETER.findall(named)))
        self.numbered = _PARAMETER.sub(lambda found: f"${self._order.index(found[1]) + 1}", named)

    def in_order(self, arguments: Arguments) -> list[object]:
        """The arguments of the numbered form."""
        return [arguments[name] for name in self._order]


def stored(text: str) -> bytes:
    """An id as a database holds it; the order of such bytes is the order of the texts."""
    return text.encode("utf-8", "surrogatepass")


def shown(blob: bytes) -> str:
    """The id that a database holds so."""
    return bytes(blob).decode("utf-8", "surrogatepass")


def whose(key: Key) -> dict[str, object]:
    """The arguments that say whose session is meant."""
    return {"tenant": stored(key.tenant), "session": stored(key.session)}


READ: Final = Statement(f"SELECT blob, version FROM turnkeeper_sessions WHERE {_THIS} AND expires > :now")
VERSION: Final = Statement(f"SELECT version FROM turnkeeper_sessions WHERE {_THIS} AND expires > :now")
REPLACE: Final = Statement(
    "UPDATE turnkeeper_sessions SET blob = :blob, version = :fresh, updated = :now, expires = :expires,"
    f" cold = cold + :count WHERE {_UNCHANGED}"
)
CREATE: Final = Statement(
    "INSERT INTO turnkeeper_sessions (tenant, session, blob, version, updated, expires, cold)"
    " VALUES (:tenant, :session, :blob, :fresh, :now, :expires, :count)"
    " ON CONFLICT (tenant, session) DO NOTHING"
)
APPEND: Final = Statement(
    "INSERT INTO turnkeeper_cold (session_id, position, blob)"
    f" SELECT id, cold - :count + :index, :entry FROM turnkeeper_sessions WHERE {_THIS}"
)
# These two, carried out in this order before REPLACE, leave its new entries alone in the cold part.
EMPTY: Final = Statement(f"UPDATE turnkeeper_sessions SET cold = 0 WHERE {_UNCHANGED}")
CLEAR: Final = Statement(
    f"DELETE FROM turnkeeper_cold WHERE session_id IN (SELECT id FROM turnkeeper_sessions WHERE {_UNCHANGED})"
)
EXPIRE: Final = Statement(f"DELETE FROM turnkeeper_sessions WHERE {_THIS} AND expires <= :now")
DELETE: Final = Statement(f"DELETE FROM turnkeeper_sessions WHERE {_THIS}")
COLD: Final = Statement(
    "SELECT turnkeeper_cold.blob FROM turnkeeper_cold"
    " JOIN turnkeeper_sessions ON turnkeeper_sessions.id = turnkeeper_cold.session_id"
    f" WHERE {_THIS} AND expires > :now AND position >= :start ORDER BY position LIMIT :limit"
)
LIST: Final = Statement(
    "SELECT session, updated, length(blob) FROM turnkeeper_sessions"
    " WHERE tenant = :tenant AND session > :after AND expires > :now ORDER BY session LIMIT :limit"
)
DUE: Final = Statement(
    "SELECT id FROM turnkeeper_sessions WHERE expires <= :now ORDER BY expires LIMIT :limit"
)
SWEEP: Final = Statement(f"DELETE FROM turnkeeper_sessions WHERE id IN ({DUE.named})")
