"""Merges the window of a request into its session. Merging is idempotent."""

import msgspec

from filters.message import Message
from proxy.memory.align.alignment import NEW, Alignment
from proxy.memory.align.deletion import close_deletion
from proxy.memory.align.strategies import WindowKind, align, has_slid, is_other_turn, is_single
from proxy.memory.merge.answer import question_before, question_ref
from proxy.memory.merge.builder import SessionBuilder
from proxy.memory.merge.entries import new_entry, renew_entry, retracted
from proxy.memory.session import (
    NO_ATTEMPT,
    Arrival,
    Attempt,
    LatestRequest,
    QuestionRef,
    Session,
    request_fingerprint,
)
from proxy.memory.speech import Speech
from proxy.memory.stores.store import CLOCK_TOLERANCE
from proxy.memory.wording import continues


def apply_request(  # noqa: PLR0913 - the request, and what is known of it already
    session: Session,
    speech: Speech,
    *,
    now: float,
    attempt: Attempt = NO_ATTEMPT,
    fingerprint: bytes | None = None,
    alignment: Alignment | None = None,
) -> tuple[Session, QuestionRef | None]:
    """Returns the session after a request, and the words to be answered; ``None`` if these are superseded.

    A repeated request changes nothing, and a request that a newer one has overtaken retracts nothing. ``now``
    is when the request arrived, in seconds since 1970. ``fingerprint`` and ``alignment`` are the request's,
    if already computed.
    """
    arrival, fingerprint = Arrival(attempt, now), fingerprint or request_fingerprint(speech, attempt)
    latest = session.latest_request
    if latest is None:
        is_known = False
    elif fingerprint != latest.fingerprint:
        is_known = bool(latest.overtaken) and latest.includes(fingerprint)
    else:
        is_another = is_other_turn if is_single(speech.lines) else has_slid
        is_known = not is_another(latest, arrival)
    if not is_known:
        session = _merge(session, speech, arrival, fingerprint, alignment)
    latest = session.latest_request
    if latest is not None and latest.includes(fingerprint):
        return session, latest.question_of(fingerprint)
    return session, _question_of(session, speech, arrival)


def repair_clock(session: Session, now: float) -> Session:
    """Returns the session; a latest request from after ``now`` gets the time 0.

    The clock was set back then, and with the time 0 every further request is newer.
    """
    latest = session.latest_request
    if latest is None or latest.at <= now + CLOCK_TOLERANCE:
        return session
    return msgspec.structs.replace(session, latest_request=msgspec.structs.replace(latest, at=0.0))


def _merge(
    session: Session, speech: Speech, arrival: Arrival, fingerprint: bytes, alignment: Alignment | None
) -> Session:
    latest, now = session.latest_request, arrival.at
    is_late = latest is not None and now < latest.at
    if is_late or alignment is None:
        alignment = align(session, speech, arrival, WindowKind.OVERTAKEN if is_late else WindowKind.LATEST)
    if alignment.is_stale or not (alignment.lines or speech.instructions):
        return session
    if session.deletion is not None:
        session = close_deletion(session, alignment.lines)
    if latest and is_late:
        session = _merge_overtaken(session, alignment, latest, now=now)
        overtaken = session.latest_request and session.latest_request.with_overtaken(
            fingerprint, _question_of(session, speech, arrival)
        )
        return msgspec.structs.replace(session, latest_request=overtaken)
    if not alignment.lines:
        latest = latest or LatestRequest(
            at=now,
            fingerprint=fingerprint,
            line_count=0,
            start=session.cold_count + len(session.entries),
            shows_answers=False,
            shows_call_start=True,
        )
        question = question_before(session.entries, -1, session.call, session.next_turn)
        latest = msgspec.structs.replace(latest, at=now, fingerprint=fingerprint, question=question)
        return msgspec.structs.replace(
            session, latest_request=latest, created=session.created or now, updated=now
        )
    merged = SessionBuilder(session, alignment, retracted(alignment), now=now).build(fingerprint)
    latest = merged.latest_request and msgspec.structs.replace(
        merged.latest_request, name_digest=arrival.attempt.name_digest, wordless=speech.wordless
    )
    started = session.started
    if alignment.new_call or started is None:
        times = (entry.timestamp for entry in merged.entries if entry.call == merged.call)
        started = next((time for time in times if time is not None), None)
    user = session.user
    if user is None:
        users = (message.user for message in alignment.lines if message.role == "user")
        user = next(filter(None, users), None)
    return msgspec.structs.replace(
        merged,
        latest_request=latest,
        user=user,
        started=started,
        created=session.created or now,
        updated=now,
    )


def _question_of(session: Session, speech: Speech, arrival: Arrival) -> QuestionRef | None:
    """Returns the question of a request that is already recorded; ``None`` if it is superseded."""
    alignment = align(session, speech, arrival, WindowKind.OVERTAKEN)
    if alignment.new_call or alignment.is_stale or alignment.revised is not None:
        return None
    if alignment.question is not None:
        place = alignment.places[alignment.question]
        return question_ref(alignment.entries, place) if place >= 0 else None
    if not (alignment.lines or speech.instructions):
        return None
    last = max(alignment.matched, default=-1)
    return question_before(alignment.entries, last, session.call, session.next_turn)


# --- overtaken requests -------------------------------------------------------------------------------------


def _merge_overtaken(session: Session, alignment: Alignment, latest: LatestRequest, *, now: float) -> Session:
    """Merges the lines of an overtaken window that precede the first line of the latest window.

    Pending answers among them were heard as shown, and lines that are not recorded are added. The latest
    window decides about everything after them.
    """
    if alignment.new_call or not alignment.entries:
        return session
    before = len(session.entries) - len(alignment.entries)
    start = max(0, latest.start - session.cold_count - before)
    entries = list(alignment.entries)
    for index, place in enumerate(alignment.places):
        if 0 <= place < start and entries[place].pending:
            entries[place] = renew_entry(entries[place], alignment.whole_line(index))
    missing = _missing_lines(alignment, start, now, older_is_cold=session.has_older)
    for place, message in reversed(missing):
        turn = alignment.entries[max(0, place - 1)].turn
        entries.insert(place, new_entry(message, call=session.call, turn=turn, now=now))
    if entries == list(alignment.entries):
        return session
    latest = msgspec.structs.replace(latest, start=latest.start + len(entries) - len(alignment.entries))
    return msgspec.structs.replace(
        session,
        entries=(*session.entries[:before], *entries),
        latest_request=latest,
        updated=max(now, session.updated),
    )


def _missing_lines(
    alignment: Alignment, start: int, now: float, *, older_is_cold: bool
) -> list[tuple[int, Message]]:
    """Returns the places and the lines to add before the first line of the latest window.

    Lines before all entries may be in the cold part, and are not added. The same goes for an early transcript
    of the next recorded words, which begin with it.
    """
    missing: list[tuple[int, Message]] = []
    first = 0
    for i, (message, known) in enumerate(zip(alignment.lines, alignment.places, strict=True)):
        if known >= start:
            break
        if known >= 0:
            first = max(first, known + 1)
            continue
        is_question = not alignment.matched and i == alignment.question
        if known != NEW or not (first or not older_is_cold or is_question):
            continue
        # Before the next recorded line; if the latest window shows that line, by the time of arrival.
        place = next((place for place in alignment.places[i:] if place >= first), start)
        if place >= start:
            earlier = (p for p in range(start, first, -1) if alignment.entries[p - 1].recorded_at <= now)
            place = next(earlier, first)
        after = next((entry for entry in alignment.entries[place:] if entry.role == "user"), None)
        if message.role != "user" or after is None or not continues(after.text, message.text):
            missing.append((place, message))
    return missing
