"""What a request adds that a newer one has overtaken: nothing that the newer one shows is changed by it."""

import msgspec

from filters.message import Message
from proxy.memory.alignment import NEW
from proxy.memory.heard import entry_of, renewed
from proxy.memory.newest import Newest
from proxy.memory.replay import Replay
from proxy.memory.session import Entry, Session


def overtaken(held: Session, replay: Replay, newest: Newest, *, now: float) -> Session:
    """The session with what this window tells of the time before the newest window's first line.

    Answers there that wait for their replay are heard as it shows them, and lines that nobody knows yet are
    put in their places. Whatever stands further on is told better by the newest window.
    """
    if replay.anew or not replay.held:
        return held
    before = len(held.entries) - len(replay.held)
    since = max(0, newest.since - held.moved - before)
    entries = _heard(replay, since)
    for place, message in reversed(_unknown(replay, since, now, moved=held.moved > 0)):
        beside = replay.held[max(0, place - 1)]
        entries.insert(place, entry_of(message, life=held.life, turn=beside.turn, now=now))
    if entries == list(replay.held):
        return held
    newest = msgspec.structs.replace(newest, since=newest.since + len(entries) - len(replay.held))
    return msgspec.structs.replace(
        held, entries=(*held.entries[:before], *entries), newest=newest, updated=max(now, held.updated)
    )


def _heard(replay: Replay, since: int) -> list[Entry]:
    entries = list(replay.held)
    for message, place in zip(replay.spoken, replay.places, strict=True):
        if 0 <= place < since and entries[place].pending:
            entries[place] = renewed(entries[place], message)
    return entries


def _unknown(replay: Replay, since: int, now: float, *, moved: bool) -> list[tuple[int, Message]]:
    """The lines that are not held, up to the first that the newest window shows, and where they belong.

    What stands before all that is held may be in the cold part. Behind the last line that is held, arrival
    tells the place; of a window that shows nothing that is held, the question alone is taken.
    """
    found: list[tuple[int, Message]] = []
    last = max(replay.matched, default=-1)
    place = 0
    for i, (message, known) in enumerate(zip(replay.spoken, replay.places, strict=True)):
        if known >= since:
            return found
        if known >= 0:
            place = max(place, known + 1)
        elif known == NEW and place > last:
            found += [(_by_arrival(replay, place, since, now), message)] if last >= 0 or i == replay.asked else []
        elif known == NEW and (place or not moved):
            found.append((place, message))
    return found


def _by_arrival(replay: Replay, start: int, since: int, now: float) -> int:
    earlier = (i + 1 for i in range(since - 1, start - 1, -1) if replay.held[i].recorded <= now)
    return next(earlier, start)
