"""Who else speaks in somebody's session, and what of it is theirs."""

from collections.abc import Iterable, Sequence

from proxy.memory.segment import Reach
from proxy.memory.session import Entry, Session

_RESULTS = frozenset({"tool", "function"})


def guests(session: Session, entries: Iterable[Entry]) -> list[str | None]:
    """For each entry the other person whose it is; ``None`` where it is the session's own person's.

    What a user said is the speaker's whom the message names. What was answered is of him who spoke last
    before it in its turn, and a result goes with its call. ``entries`` are in order, and each turn whole.
    """
    own = {None, session.user, session.alias}
    place: Reach | None = None
    found: list[str | None] = []
    asking = calling = None
    for entry in entries:
        if entry.place != place:
            place, asking, calling = entry.place, None, None
        if entry.role == "user":
            asking = None if entry.user in own else entry.user
        elif entry.role not in _RESULTS:
            calling = asking
        found.append(calling if entry.role in _RESULTS else asking)
    return found


def parted(session: Session, entries: Sequence[Entry], name: str) -> tuple[list[Entry], list[Entry]]:
    """What a person said among these entries or was answered, and what is left without it."""
    theirs, left = list[Entry](), list[Entry]()
    for entry, guest in zip(entries, guests(session, entries), strict=True):
        (theirs if name in {entry.user, guest} else left).append(entry)
    return theirs, left
