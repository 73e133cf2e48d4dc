"""What an engine replays and what is held, brought together: memory holds what the caller heard."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from filters.message import Message
from proxy.memory.reconcile.absence import gone
from proxy.memory.reconcile.heard import renewed, undotted
from proxy.memory.reconcile.overtaken import overtaken
from proxy.memory.reconcile.question import question_before, turn_of, unasked
from proxy.memory.reconcile.weaving import woven
from proxy.memory.replay import lone
from proxy.memory.replay.beside import beside
from proxy.memory.replay.bygone import closed
from proxy.memory.replay.replay import Replay, last_user
from proxy.memory.session.entry import Entry, message_of
from proxy.memory.session.newest import AskedTurn, Newest, seal
from proxy.memory.session.retry import UNTOLD, Asking, Attempt
from proxy.memory.session.segment import START, Reach
from proxy.memory.session.session import Session
from proxy.memory.speech.speech import Speech


class _Request(NamedTuple):
    """What a request says, what it says of itself, and what it is known by."""

    said: Speech
    asking: Asking
    sealed: bytes

    def known(self, newest: Newest) -> bool:
        """Whether it has been taken in already."""
        if self.sealed != newest.seal:
            return newest.knows(self.sealed)
        if lone.is_lone(self.said.lines):
            return not lone.another(newest, self.asking)
        return not lone.slides(newest, self.asking)


def taken(
    held: Session, said: Speech, *, now: float, attempt: Attempt = UNTOLD, replay: Replay | None = None
) -> tuple[Session, AskedTurn | None]:
    """What is held after a request, and the words that it asks to be answered: ``None`` once superseded.

    The same request again changes nothing. ``now`` is when it arrived, in seconds since 1970: one that a
    newer request has overtaken takes nothing back. ``attempt`` is what the request says of itself. ``replay``
    is its speech beside what is held, where that has been read already.
    """
    request = _Request(said, Asking(attempt, now), seal(said, attempt))
    session = _reconciled(held, request, replay)
    return session, _asked_by(session, request)


def _reconciled(held: Session, request: _Request, replay: Replay | None = None) -> Session:
    newest, (attempt, now) = held.newest, request.asking
    if newest and request.known(newest):
        return held
    late = newest is not None and now < newest.at
    if late or replay is None:
        replay = beside(held, request.said, request.asking, overtaken=late)
    if replay.stale or not (replay.spoken or request.said.bidden):
        return held
    held = closed(held, replay.spoken)
    if newest and late:
        return _overtaken(overtaken(held, replay, newest, now=now), request)
    if not replay.spoken:
        return _bidden(held, request.sealed, now)
    session = woven(held, replay, gone(replay), now=now, seal=request.sealed)
    newest = session.newest and msgspec.structs.replace(
        session.newest, request=attempt.request, wordless=request.said.wordless
    )
    return msgspec.structs.replace(
        session,
        newest=newest,
        user=held.user or next((m.user for m in replay.spoken if m.role == "user" and m.user), None),
        began=_began(session) if replay.anew or held.began is None else held.began,
        created=held.created or now,
        updated=now,
    )


def _bidden(held: Session, sealed: bytes, now: float) -> Session:
    """The session after a request without any speech."""
    turn, since = unasked(held.entries, held.life, held.turns), held.moved + len(held.entries)
    newest = held.newest or Newest(at=now, seal=sealed, lines=0, since=since, answering=False, whole=True)
    newest = msgspec.structs.replace(newest, at=now, seal=sealed, asked=turn)
    return msgspec.structs.replace(held, newest=newest, created=held.created or now, updated=now)


def _overtaken(session: Session, request: _Request) -> Session:
    newest = session.newest and session.newest.overtaking(request.sealed, _asked(session, request))
    return msgspec.structs.replace(session, newest=newest)


def _began(session: Session) -> int | float | None:
    entries = (entry for entry in session.entries if entry.life == session.life)
    return next((entry.timestamp for entry in entries if entry.timestamp is not None), None)


def _asked_by(held: Session, request: _Request) -> AskedTurn | None:
    if held.newest and held.newest.knows(request.sealed):
        return held.newest.asked_by(request.sealed)
    return _asked(held, request)


def _asked(held: Session, request: _Request) -> AskedTurn | None:
    replay = beside(held, request.said, request.asking, overtaken=True)
    if replay.anew or replay.stale or replay.revised is not None:
        return None
    if replay.asked is None:
        place = question_before(replay.held, max(replay.matched, default=-1))
        if place is None:
            says = replay.spoken or request.said.bidden
            return unasked(replay.held, held.life, held.turns) if says else None
    else:
        place = replay.places[replay.asked]
    return None if place is None or place < 0 else turn_of(replay.held, place)


def marked(window: Sequence[Message], replay: Replay) -> Sequence[Message]:
    """The window with answers marked as interrupted where the engine replays less than was generated.

    An answer that the engine marks itself is left as it is, and so is everything else. ``replay`` is the
    window beside what is held.
    """
    entries, cut = replay.held, {}
    for position, place in enumerate(replay.places):
        if place >= 0 and replay.spoken[position].role == "assistant":
            message, entry = replay.told(position), entries[place]
            # An answer that stands as it was given, most of them, is told at a glance.
            if (entry.interrupted or entry.content != message.content) and (of := _unmarked(entry, message)):
                whole = replay.wholes.get(position)
                message, of = whole.last(of) if whole else (message, of)
                cut[id(message)] = of
    return [_marked(m, cut[id(m)]) if id(m) in cut else m for m in window] if cut else window


def missing(
    replay: Replay,
    *,
    behind: Reach = START,
    also: Collection[int] = (),
    given: Mapping[int, Message] = MappingProxyType({}),
) -> tuple[Message, ...]:
    """What the engine no longer replays and memory still has of this life, in order, of turns ``behind`` one.

    It is what stands before the window's first line, and ``also`` what stands at these positions; a turn
    that the window supersedes is not missing. What the client has ``given`` at a position is told so.
    """
    first = _first(replay)
    if not first and not also:
        return ()
    lost = gone(replay)
    places = sorted({*range(first), *also} - lost)
    if behind > START:
        places = [h for h in places if replay.held[h].place > behind]
    left = tuple(message_of(replay.held[h]) for h in places)
    return _as_given(left, [given.get(h) for h in places]) if given else left


def _as_given(left: Sequence[Message], given: Sequence[Message | None]) -> tuple[Message, ...]:
    pairs = zip(left, given, strict=True)
    return tuple(m if own is None else msgspec.structs.replace(m, content=own.content) for m, own in pairs)


def _first(replay: Replay) -> int:
    """Where in ``held`` the window begins."""
    start = min(replay.matched, default=len(replay.held))
    return start and min(start, last_user(replay.held) or 0) if replay.stale else start


def _unmarked(entry: Entry, message: Message) -> str | None:
    """All that was generated, where an answer is a part of it and does not say so."""
    if message.interrupted:
        return None
    if entry.content != message.content:
        entry = renewed(entry, message)
    return entry.original if entry.interrupted else None


def _marked(message: Message, original: str) -> Message:
    marks = {**(message.metadata or {}), "interrupted": True, "original": original}
    return msgspec.structs.replace(undotted(message, original), metadata=marks)
