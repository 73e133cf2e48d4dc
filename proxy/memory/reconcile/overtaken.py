"""What a request adds that a newer one has overtaken: nothing that the newer one shows is changed by it."""

import msgspec

from filters.message import Message
from proxy.memory.reconcile.heard import entry_of, renewed
from proxy.memory.replay.line import NEW
from proxy.memory.replay.replay import Replay
from proxy.memory.session.entry import Entry
from proxy.memory.session.newest import Newest
from proxy.memory.session.session import Session
from proxy.memory.speech.wording import goes_on
from proxy.memory.store import APART


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
    for place, message in reversed(_unknown(replay, since, now, moved=held.older)):
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
    for position, place in enumerate(replay.places):
        if 0 <= place < since and entries[place].pending:
            entries[place] = renewed(entries[place], replay.told(position))
    return entries


def _unknown(replay: Replay, since: int, now: float, *, moved: bool) -> list[tuple[int, Message]]:
    """The lines that are not held, up to the first that the newest window shows, and where they belong.

    What stands before all that is held may be in the cold part.
    """
    found: list[tuple[int, Message]] = []
    start = 0
    for i, (message, known) in enumerate(zip(replay.spoken, replay.places, strict=True)):
        if known >= since:
            break
        if known >= 0:
            start = max(start, known + 1)
        elif known == NEW and (start or not moved or (not replay.matched and i == replay.asked)):
            found.append((_place(replay, i, start, since, now), message))
    return [(at, message) for at, message in found if not _early(replay, at, message)]


def _place(replay: Replay, position: int, start: int, since: int, now: float) -> int:
    """Before the next line that is held; where the newest window shows that, arrival tells the place."""
    following = next((h for h in replay.places[position:] if h >= start), since)
    if following < since:
        return following
    earlier = (i + 1 for i in range(since - 1, start - 1, -1) if replay.held[i].recorded <= now)
    return next(earlier, start)


def _early(replay: Replay, place: int, message: Message) -> bool:
    """Whether these are words that the next ones, which are held, go on from."""
    after = next((entry for entry in replay.held[place:] if entry.role == "user"), None)
    return message.role == "user" and after is not None and goes_on(after.text, message.text)


def settled(session: Session, now: float) -> Session:
    """The session, ready for a request that arrives ``now``.

    Where its newest request is dated ahead of that, the clock was set back: it is dated 0, so that whatever
    comes is newer.
    """
    newest = session.newest
    if newest is None or newest.at <= now + APART:
        return session
    return msgspec.structs.replace(session, newest=msgspec.structs.replace(newest, at=0.0))
