"""Who else speaks in somebody's session, and what of it is theirs to find."""

from collections.abc import Iterable, Sequence
from typing import Final

from proxy.memory.session.entry import Entry
from proxy.memory.session.forgotten import Forgotten
from proxy.memory.session.segment import Reach
from proxy.memory.session.session import Session

NOBODY: Final = ""
"""Whose it is what was answered to words that are forgotten."""
_RESULTS = frozenset({"tool", "function"})


def guests(session: Session, entries: Iterable[Entry]) -> list[str | None]:
    """For each entry the other person whose it is; ``None`` where it is the session's own person's.

    What a user said is the speaker's whom the message names, or its request. What was answered is of him who
    spoke last before it in its turn, and a result goes with its call. ``entries`` are in order, and each turn
    whole.
    """
    own = {None, session.user, session.alias}
    unasked = None if session.forgotten is None else NOBODY
    place: Reach | None = None
    found: list[str | None] = []
    asking = calling = unasked
    for entry in entries:
        if entry.place != place:
            place, asking, calling = entry.place, unasked, unasked
        if entry.role == "user":
            asking = None if entry.speaker in own else entry.speaker
        elif entry.role not in _RESULTS:
            calling = asking
        found.append(calling if entry.role in _RESULTS else asking)
    return found


def supposed(person: str, entries: Sequence[Entry]) -> Session:
    """A person's session as its entries alone tell of it, and of what the engine calls that person.

    The first to speak is the session's person: under another name, unless his own is among those that speak.
    Words may have been forgotten, for all that the entries tell.
    """
    names = [entry.speaker for entry in entries if entry.role == "user" and not entry.put_in]
    alias = names[0] if names and person not in names else None
    return Session(user=person, alias=alias, entries=tuple(entries), forgotten=Forgotten(at=0.0))
