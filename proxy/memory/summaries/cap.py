"""A session kept small: the oldest turns move out, whole."""

import msgspec

from filters.group import Group, groups
from proxy.memory.session.entry import Entry, message_of
from proxy.memory.session.session import Session


def cap(held: Session, most: int, keep: int) -> tuple[Session, tuple[Entry, ...]]:
    """The session with at least ``keep`` entries left once it has more than ``most``, and what moved out.

    It is cut where a turn begins and no tool group is cut or open. Past twice ``most`` a call of a former
    turn that still has no result counts as given up, or it would keep the session growing for ever.
    """
    size = len(held.entries)
    if size <= most:
        return held, ()
    return moved_out(held, cut_of(held.entries, keep, strict=size <= 2 * most))


def moved_out(held: Session, count: int) -> tuple[Session, tuple[Entry, ...]]:
    """The session without its oldest entries, and these."""
    if not count:
        return held, ()
    kept = msgspec.structs.replace(held, entries=held.entries[count:], moved=held.moved + count)
    return kept, held.entries[:count]


def cut_of(entries: tuple[Entry, ...], keep: int, *, strict: bool) -> int:
    """Where to cut so that at least ``keep`` entries are left; 0 where it can be cut nowhere."""
    barred = _barred(entries, strict=strict)
    cuts = (i for i in range(len(entries) - max(keep, 1), 0, -1) if i not in barred and begins(entries, i))
    return next(cuts, 0)


def begins(entries: tuple[Entry, ...], position: int) -> bool:
    """Whether a turn begins there."""
    return entries[position - 1].place != entries[position].place


def _barred(entries: tuple[Entry, ...], *, strict: bool) -> set[int]:
    """Where a cut would part a tool group, or leave an open one behind it."""
    newest = entries[-1].place
    barred: set[int] = set()
    end = 0
    for group in groups([message_of(entry) for entry in entries]):
        call = entries[group.call]
        waiting = group.open and (strict or call.place == newest)
        start, end = max(group.call + 1, end), max(len(entries) if waiting else _end(group), end)
        barred.update(range(start, end))
    return barred


def _end(group: Group) -> int:
    return max((group.call, *group.results)) + 1
