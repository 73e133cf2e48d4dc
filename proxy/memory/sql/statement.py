"""What is asked of either database, in words that both understand.

Ids are bytes there: any text is an id, NUL and half characters included, and all databases sort alike.
"""

import re
import time
from collections.abc import Mapping
from typing import Final

from proxy.memory.store import APART, DELETION_KEPT, Key

Arguments = Mapping[str, object]

_PARAMETER = re.compile(r"(?<!:):([a-z]+)")
_THIS = "tenant = :tenant AND session = :session"
_UNCHANGED = f"{_THIS} AND version = :version AND expires > :now"


class Statement:
    """SQL with parameters by name (``:name``, for SQLite) and by number (``$1``, for PostgreSQL).

    ``order`` has the name of each number.
    """

    __slots__ = ("named", "numbered", "order")

    def __init__(self, named: str) -> None:
        self.named = named
        self.order = tuple(dict.fromkeys(_PARAMETER.findall(named)))
        self.numbered = _PARAMETER.sub(lambda found: f"${self.order.index(found[1]) + 1}", named)

    def in_order(self, arguments: Arguments) -> list[object]:
        """The arguments of the numbered form."""
        return [arguments[name] for name in self.order]


def stored(text: str) -> bytes:
    """An id as a database holds it; the order of such bytes is the order of the texts."""
    return text.encode("utf-8", "surrogatepass")


def shown(blob: bytes) -> str:
    """The id that a database holds so."""
    return bytes(blob).decode("utf-8", "surrogatepass")


def whose(key: Key) -> dict[str, object]:
    """The arguments that say whose session is meant."""
    return {"tenant": stored(key.tenant), "session": stored(key.session)}


def due(limit: int) -> dict[str, object]:
    """The arguments that say which sessions are to be swept: what has expired, and no deletion of late."""
    now = time.time()
    return {"now": now, "forgotten": now - DELETION_KEPT, "limit": limit}


READ: Final = Statement(f"SELECT blob, version FROM turnkeeper_sessions WHERE {_THIS} AND expires > :now")
STATE: Final = Statement(
    "SELECT CASE WHEN expires > :now THEN version ELSE 0 END, deleted, expires"
    f" FROM turnkeeper_sessions WHERE {_THIS}"
)
REPLACE: Final = Statement(
    "UPDATE turnkeeper_sessions SET blob = :blob, version = :fresh, updated = :now, expires ="
    " CASE WHEN CAST(:expires AS double precision) < 0 THEN expires ELSE :expires END,"
    f" cold = cold + :count WHERE {_UNCHANGED} AND (deleted < :at OR deleted - {APART} > :now)"
)
CREATE: Final = Statement(
    "INSERT INTO turnkeeper_sessions (tenant, session, blob, version, updated, expires, cold)"
    " VALUES (:tenant, :session, :blob, :fresh, :now, :expires, :count)"
    " ON CONFLICT (tenant, session) DO UPDATE SET blob = excluded.blob, version = excluded.version,"
    " updated = excluded.updated, expires = excluded.expires, cold = excluded.cold"
    " WHERE turnkeeper_sessions.expires <= :now AND turnkeeper_sessions.cold = 0"
    f" AND (turnkeeper_sessions.deleted < :at OR turnkeeper_sessions.deleted - {APART} > :now)"
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
REFUSED: Final = Statement(
    f"SELECT id FROM turnkeeper_sessions WHERE {_THIS} AND deleted >= :at AND deleted - {APART} <= :now"
)
# These two take away what an expired session has left, but for when it was deleted before that.
EXPIRE: Final = Statement(f"UPDATE turnkeeper_sessions SET cold = 0 WHERE {_THIS} AND expires <= :now")
EXPIRE_COLD: Final = Statement(
    "DELETE FROM turnkeeper_cold WHERE session_id IN"
    f" (SELECT id FROM turnkeeper_sessions WHERE {_THIS} AND expires <= :now)"
)
BURY: Final = Statement(
    "INSERT INTO turnkeeper_sessions (tenant, session, blob, version, updated, expires, cold, deleted)"
    " VALUES (:tenant, :session, :blob, 0, 0, 0, 0, :now)"
    " ON CONFLICT (tenant, session) DO UPDATE SET blob = excluded.blob, version = 0, updated = 0,"
    " expires = 0, cold = 0, deleted = excluded.deleted"
)
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
    "SELECT id FROM turnkeeper_sessions WHERE expires <= :now AND deleted <= :forgotten"
    " ORDER BY expires LIMIT :limit"
)
SWEEP: Final = Statement(f"DELETE FROM turnkeeper_sessions WHERE id IN ({DUE.named})")
