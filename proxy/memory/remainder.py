"""What a list of messages does not tell of a session, so that an import is exactly what was exported."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from filters.message import Message
from proxy.memory.interchange import numbered, shown
from proxy.memory.session import (
    START,
    Agents,
    Entry,
    Forgotten,
    LatestRequest,
    Reach,
    Segment,
    Session,
    disorder,
)

_SPEAKERS: Final = frozenset({"user", "assistant", "tool", "function"})
_FIELDS: Final = tuple(name for name in Entry.__struct_fields__ if name != "role")


class Remainder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A session less its messages.

    ``entries`` has, for each message, those fields of its entry that the message alone would be read
    otherwise for. Which facts the prompts begin with is not carried: elsewhere they may not be known.
    """

    entries: list[dict[str, Any]] = []
    life: int = 0
    turns: int = 0
    user: str | None = None
    began: int | float | None = None
    created: float = 0.0
    updated: float = 0.0
    newest: LatestRequest | None = None
    unheard: tuple[Entry, ...] = ()
    state: dict[str, Any] = {}
    agents: Agents | None = None
    summaries: tuple[Segment, ...] = ()
    model: str | None = None
    trimmed: bool = False
    room: int = 0
    learnt: Reach = START
    alias: str | None = None
    shared: bool = False
    scale: float = 0.0
    forgotten: Forgotten | None = None
    prompts: tuple[str, ...] = ()


_CARRIED: Final = tuple(name for name in Remainder.__struct_fields__ if name != "entries")


def remainder(session: Session) -> Remainder:
    """What ``contents`` of a whole session leaves out."""
    told = numbered(shown(session.entries), now=0.0)
    pairs = zip(session.entries, told, strict=True)
    return Remainder(
        entries=[_difference(*pair) for pair in pairs],
        **{name: getattr(session, name) for name in _CARRIED},
    )


def restored(messages: Sequence[Message], left: Remainder) -> Session:
    """The session that was exported as these messages and this remainder.

    Raises ValueError where one does not belong to the other, and where turns go back. System messages are
    left out.
    """
    if len(messages) != len(left.entries):
        raise ValueError("it has as many entries as there are messages")
    told = numbered(messages, now=0.0)
    pairs = zip(told, left.entries, strict=True)
    session = Session(
        entries=tuple(_with(entry, more) for entry, more in pairs if entry.role in _SPEAKERS),
        **{name: getattr(left, name) for name in _CARRIED},
    )
    if (fault := disorder(session)) is not None:
        raise ValueError(fault)
    return session


def _difference(entry: Entry, told: Entry) -> dict[str, Any]:
    return {name: value for name in _FIELDS if (value := getattr(entry, name)) != getattr(told, name)}


def _with(told: Entry, more: dict[str, Any]) -> Entry:
    return msgspec.convert({**msgspec.structs.asdict(told), **more, "role": told.role}, Entry)
