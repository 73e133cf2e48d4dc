"""What a request adds that a newer one has overtaken: nothing that the newer one shows is changed by it."""

from collections.abc import Sequence

import msgspec

from proxy.memory.alignment import NEW
from proxy.memory.heard import entry_of, renewed
from proxy.memory.newest import Newest
from proxy.memory.replay import Replay
from proxy.memory.session import Entry, Session


def overtaken(held: Session, replay: Replay, newest: Newest, *, now: float) -> Session:
    """The session with what this window tells of the time before the newest window's first line.

    Answers there that wait for their replay are heard as it shows them, and its own question is put in where
    it is not held. Whatever stands further on is told better by the newest window.
    """
    if replay.anew:
        return held
    before = len(held.entries) - len(replay.held)
    since = max(0, newest.since - held.moved - before)
    entries = _heard(replay, since)
    question = _question(replay, since, now)
    if question is None and entries == list(replay.held):
        return held
    added = 0
    if question is not None:
        entries.insert(question, _asked(replay, question, held.life, now))
        added = 1
    return msgspec.structs.replace(
        held,
        entries=(*held.entries[:before], *entries),
        newest=msgspec.structs.replace(newest, since=newest.since + added),
        updated=max(now, held.updated),
    )


def _heard(replay: Replay, since: int) -> list[Entry]:
    entries = list(replay.held)
    for message, place in zip(replay.spoken, replay.places, strict=True):
        if 0 <= place < since and entries[place].pending:
            entries[place] = renewed(entries[place], message)
    return entries


def _question(replay: Replay, since: int, now: float) -> int | None:
    """Where the words belong that the window asks to be answered; ``None`` if they are held or taken back."""
    if replay.asked is None or replay.places[replay.asked] != NEW or max(replay.matched, default=-1) >= since:
        return None
    before = max(replay.matched, default=-1) + 1
    earlier = (i + 1 for i in range(since - 1, before - 1, -1) if replay.held[i].recorded <= now)
    return next(earlier, before)


def _asked(replay: Replay, place: int, life: int, now: float) -> Entry:
    beside: Sequence[Entry] = replay.held[max(0, place - 1) : place + 1]
    turn = beside[0].turn if beside else 0
    return entry_of(replay.spoken[replay.asked or 0], life=life, turn=turn, now=now)
