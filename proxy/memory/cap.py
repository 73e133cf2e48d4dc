"""A session kept small: the oldest turns move out, whole."""

import msgspec

from filters.group import Group, groups
from proxy.memory.session import Entry, Session, message_of


def cap(held: Session, most: int, keep: int) -> tuple[Session, tuple[Entry, ...]]:
    """The session with at least ``keep`` entries left once it has more than ``most``, and what moved out.

    It is cut where a turn begins and no tool group is cut or open. Past twice ``most`` a call of a former
    turn that still has no result counts as given up, or it would keep the session growing for ever.
    """
    size = len(held.entries)
    if size <= most:
        return held, ()
    barred = _barred(held.entries, strict=size <= 2 * most)
    cuts = (i for i in range(size - max(keep, 1), 0, -1) if i not in barred and _begins(held.entries, i))
    cut = next(cuts, 0)
    if not cut:
        return held, ()
    moved = held.entries[:cut]
    return msgspec.structs.replace(held, entries=held.entries[cut:], moved=held.moved + cut), moved


def _begins(entries: tuple[Entry, ...], position: int) -> bool:
    before, after = entries[position - 1], entries[position]
    return (before.life, before.turn) != (after.life, after.turn)


def _barred(entries: tuple[Entry, ...], *, strict: bool) -> set[int]:
    """Where a cut would part a tool group, or leave an open one behind it."""
    newest = entries[-1].life, entries[-1].turn
    barred: set[int] = set()
    for group in groups([message_of(entry) for entry in entries]):
        call = entries[group.call]
        waiting = group.open and (strict or (call.life, call.turn) == newest)
        barred.update(range(group.call + 1, len(entries) if waiting else _end(group)))
    return barred


def _end(group: Group) -> int:
    return max((group.call, *group.results)) + 1
