"""What was heard is taken into the session; the same again leaves the same.

``reconcile`` first: a window's way in. It asks ``overtaken`` (is it late?), ``absence`` (what was taken
back?) and ``question`` (what is to be answered?), ``weaving`` puts the entries together, and ``heard``
makes each of them. ``answer`` puts in what the model said. ``lives``, ``history`` and ``utterance`` take
what an engine tells of a whole talk; ``unsaid`` is what the archive may not tell of this one, and
``spelling`` tells answers as they are held.
"""

from typing import NamedTuple

import msgspec

from filters.message import Message
from proxy.memory.align import strategies
from proxy.memory.align.alignment import Alignment
from proxy.memory.align.forgotten import with_marks
from proxy.memory.align.line import NEW
from proxy.memory.align.strategies import align
from proxy.memory.merge.builder import question_before, turn_of, unasked, woven
from proxy.memory.merge.entries import new_entry, renew_entry
from proxy.memory.merge.retraction import retracted
from proxy.memory.session import (
    NO_ATTEMPT,
    Arrival,
    Attempt,
    Entry,
    LatestRequest,
    QuestionRef,
    Session,
    request_fingerprint,
)
from proxy.memory.speech import Speech
from proxy.memory.stores.store import CLOCK_TOLERANCE
from proxy.memory.wording import continues


class _Request(NamedTuple):
    """What a request says, what it says of itself, and what it is known by."""

    said: Speech
    asking: Arrival
    sealed: bytes

    def known(self, newest: LatestRequest) -> bool:
        """Whether it has been taken in already."""
        if self.sealed != newest.fingerprint:
            return newest.includes(self.sealed)
        if strategies.is_lone(self.said.lines):
            return not strategies.is_other_turn(newest, self.asking)
        return not strategies.has_slid(newest, self.asking)


def apply_request(
    held: Session, said: Speech, *, now: float, attempt: Attempt = NO_ATTEMPT, replay: Alignment | None = None
) -> tuple[Session, QuestionRef | None]:
    """What is held after a request, and the words that it asks to be answered: ``None`` once superseded.

    The same request again changes nothing. ``now`` is when it arrived, in seconds since 1970: one that a
    newer request has overtaken takes nothing back. ``attempt`` is what the request says of itself. ``replay``
    is its speech beside what is held, where that has been read already.
    """
    request = _Request(said, Arrival(attempt, now), request_fingerprint(said, attempt))
    session = _reconciled(held, request, replay)
    return session, _asked_by(session, request)


def _reconciled(held: Session, request: _Request, replay: Alignment | None = None) -> Session:
    newest, (attempt, now) = held.latest_request, request.asking
    if newest and request.known(newest):
        return held
    late = newest is not None and now < newest.at
    if late or replay is None:
        replay = align(held, request.said, request.asking, overtaken=late)
    if replay.stale or not (replay.lines or request.said.instructions):
        return held
    held = with_marks(held, replay.lines)
    if newest and late:
        return _overtaken(overtaken(held, replay, newest, now=now), request)
    if not replay.lines:
        return _bidden(held, request.sealed, now)
    session = woven(held, replay, retracted(replay), now=now, seal=request.sealed)
    newest = session.latest_request and msgspec.structs.replace(
        session.latest_request, name_digest=attempt.name_digest, wordless=request.said.wordless
    )
    return msgspec.structs.replace(
        session,
        latest_request=newest,
        user=held.user or next((m.user for m in replay.lines if m.role == "user" and m.user), None),
        started=_began(session) if replay.new_call or held.started is None else held.started,
        created=held.created or now,
        updated=now,
    )


def _bidden(held: Session, sealed: bytes, now: float) -> Session:
    """The session after a request without any speech."""
    turn, since = unasked(held.entries, held.call, held.next_turn), held.cold_count + len(held.entries)
    newest = held.latest_request or LatestRequest(
        at=now, fingerprint=sealed, line_count=0, start=since, shows_answers=False, shows_call_start=True
    )
    newest = msgspec.structs.replace(newest, at=now, fingerprint=sealed, question=turn)
    return msgspec.structs.replace(held, latest_request=newest, created=held.created or now, updated=now)


def _overtaken(session: Session, request: _Request) -> Session:
    newest = session.latest_request and session.latest_request.with_overtaken(
        request.sealed, _asked(session, request)
    )
    return msgspec.structs.replace(session, latest_request=newest)


def _began(session: Session) -> int | float | None:
    entries = (entry for entry in session.entries if entry.call == session.call)
    return next((entry.timestamp for entry in entries if entry.timestamp is not None), None)


def _asked_by(held: Session, request: _Request) -> QuestionRef | None:
    if held.latest_request and held.latest_request.includes(request.sealed):
        return held.latest_request.question_of(request.sealed)
    return _asked(held, request)


def _asked(held: Session, request: _Request) -> QuestionRef | None:
    replay = align(held, request.said, request.asking, overtaken=True)
    if replay.new_call or replay.stale or replay.revised is not None:
        return None
    if replay.question is None:
        place = question_before(replay.entries, max(replay.matched, default=-1))
        if place is None:
            says = replay.lines or request.said.instructions
            return unasked(replay.entries, held.call, held.next_turn) if says else None
    else:
        place = replay.places[replay.question]
    return None if place is None or place < 0 else turn_of(replay.entries, place)


def overtaken(held: Session, replay: Alignment, newest: LatestRequest, *, now: float) -> Session:
    """The session with what this window tells of the time before the newest window's first line.

    Answers there that wait for their replay are heard as it shows them, and lines that nobody knows yet are
    put in their places. Whatever stands further on is told better by the newest window.
    """
    if replay.new_call or not replay.entries:
        return held
    before = len(held.entries) - len(replay.entries)
    since = max(0, newest.start - held.cold_count - before)
    entries = _confirm_pending(replay, since)
    for place, message in reversed(_unknown(replay, since, now, moved=held.has_older)):
        beside = replay.entries[max(0, place - 1)]
        entries.insert(place, new_entry(message, life=held.call, turn=beside.turn, now=now))
    if entries == list(replay.entries):
        return held
    newest = msgspec.structs.replace(newest, start=newest.start + len(entries) - len(replay.entries))
    return msgspec.structs.replace(
        held,
        entries=(*held.entries[:before], *entries),
        latest_request=newest,
        updated=max(now, held.updated),
    )


def _confirm_pending(replay: Alignment, since: int) -> list[Entry]:
    entries = list(replay.entries)
    for position, place in enumerate(replay.places):
        if 0 <= place < since and entries[place].pending:
            entries[place] = renew_entry(entries[place], replay.whole_line(position))
    return entries


def _unknown(replay: Alignment, since: int, now: float, *, moved: bool) -> list[tuple[int, Message]]:
    """The lines that are not held, up to the first that the newest window shows, and where they belong.

    What stands before all that is held may be in the cold part.
    """
    found: list[tuple[int, Message]] = []
    start = 0
    for i, (message, known) in enumerate(zip(replay.lines, replay.places, strict=True)):
        if known >= since:
            break
        if known >= 0:
            start = max(start, known + 1)
        elif known == NEW and (start or not moved or (not replay.matched and i == replay.question)):
            found.append((_place(replay, i, start, since, now), message))
    return [(at, message) for at, message in found if not _early(replay, at, message)]


def _place(replay: Alignment, position: int, start: int, since: int, now: float) -> int:
    """Before the next line that is held; where the newest window shows that, arrival tells the place."""
    following = next((h for h in replay.places[position:] if h >= start), since)
    if following < since:
        return following
    earlier = (i + 1 for i in range(since - 1, start - 1, -1) if replay.entries[i].recorded_at <= now)
    return next(earlier, start)


def _early(replay: Alignment, place: int, message: Message) -> bool:
    """Whether these are words that the next ones, which are held, go on from."""
    after = next((entry for entry in replay.entries[place:] if entry.role == "user"), None)
    return message.role == "user" and after is not None and continues(after.text, message.text)


def repair_clock(session: Session, now: float) -> Session:
    """The session, ready for a request that arrives ``now``.

    Where its newest request is dated ahead of that, the clock was set back: it is dated 0, so that whatever
    comes is newer.
    """
    newest = session.latest_request
    if newest is None or newest.at <= now + CLOCK_TOLERANCE:
        return session
    return msgspec.structs.replace(session, latest_request=msgspec.structs.replace(newest, at=0.0))
