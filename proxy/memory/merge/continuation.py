"""The fast path for the usual next window of a call: the latest one, its answer, and new words of the user.

Nearly every window is one. A comparison of encoded bytes recognises it, and only its new lines are aligned
and merged.
"""

from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Final

import msgspec

from filters.message import SYSTEM, Message, turn_id_of
from proxy.memory.align.alignment import NEW, Alignment
from proxy.memory.align.strategies import pause_since
from proxy.memory.align.turn_ids import order_by_turn
from proxy.memory.merge.answer import Answer, answer_entry
from proxy.memory.merge.entries import new_entry, renew_entry, shows_as_recorded
from proxy.memory.session import (
    Arrival,
    Attempt,
    LatestRequest,
    QuestionRef,
    Session,
    encoded_lines,
    goes_on,
    request_fingerprint,
)
from proxy.memory.speech import Speech, speech_of

NEW_LINES: Final = 2
"""The number of lines that such a window adds: the answer and the new words."""
_role: Final = attrgetter("role")
_tool_calls: Final = attrgetter("tool_calls")


def continuation(
    session: Session, latest_line_bytes: bytes, window: Sequence[Message], arrival: Arrival
) -> tuple[Speech, bytes, bytes, Alignment] | None:
    """Returns the speech, encoded lines, fingerprint and alignment of a window that continues a session.

    ``latest_line_bytes`` are the encoded lines of the session's latest request, if it ``can_be_continued``.
    After system messages, the window must consist of the last of these lines, the answer, and words of the
    user. For other windows the result is ``None``.
    """
    start, end = 0, len(window) - NEW_LINES
    while start < end and window[start].role in SYSTEM:
        start += 1
    count, lines, newest = end - start, window[start:], window[end:]
    encoded = encoded_lines(lines)
    if not goes_on(encoded, latest_line_bytes, encoded_lines(newest)):
        return None
    entries, latest, (answer, words) = session.entries, session.latest_request, newest
    last = entries[-1]
    turn_id, next_turn_id = last.turn_id, turn_id_of(words)
    if (
        session.deletion is not None
        or entries[0].call != session.call
        # Equal bytes may begin in the middle of a line.
        or lines[0].content != entries[-count - 1].content
    ):
        return None
    if (
        not last.role == answer.role == "assistant"
        or not isinstance(last.content, str)
        or answer.content != last.content
        or answer.tool_calls
        or last.tool_calls
        or turn_id_of(answer) != turn_id
        or words.role != "user"
        or words.tool_calls
        or (next_turn_id is not None if turn_id is None else next_turn_id is None or next_turn_id < turn_id)
    ):
        return None
    spoken = speech_of(newest).lines
    if len(spoken) != NEW_LINES or spoken[0] is not answer or spoken[1] is not words:
        return None
    speech = Speech(lines, shows_answers=True, positions=range(start, len(window)))
    fingerprint = request_fingerprint(speech, arrival.attempt, encoded)
    if latest is None or latest.includes(fingerprint):
        return None
    size = len(entries)
    alignment = Alignment(
        entries,
        speech.lines,
        [*range(size - count - 1, size), NEW],
        size,
        shows_answers=True,
        positions=speech.positions,
        pause=pause_since(last, latest, arrival.at),
        unchanged=count,
    )
    return speech, encoded, fingerprint, alignment


def append_turn(  # noqa: PLR0913 - the turn, and what is known of it already
    session: Session,
    alignment: Alignment,
    fingerprint: bytes,
    answer: Answer,
    *,
    attempt: Attempt,
    now: float,
) -> Session | None:
    """Returns the session after such a window and its answer, with two more entries.

    The result equals that of ``apply_request`` and ``apply_answer``. It is ``None`` if the window is no such
    one, was overtaken or begins no turn, or if the answer has no words or may be another user's.
    """
    latest, entries = session.latest_request, session.entries
    if not alignment.unchanged or latest is None or now < latest.at or not answer.text.strip():
        return None
    answer_line, words_line = alignment.lines[-NEW_LINES:]
    confirmed = renew_entry(entries[-1], answer_line)
    call, turn, user = session.call, session.next_turn, session.user
    words = new_entry(words_line, call=call, turn=turn, now=now)
    if user is None:
        user = next((m.user for m in alignment.lines if m.role == "user" and m.user), None)
    if answer.user is not None and (answer.user != user or session.shared):
        return None
    if words.turn_id is not None and words.turn_id == confirmed.turn_id:
        return None
    started = session.started
    if started is None:
        times = (entry.timestamp for entry in (*entries[:-1], confirmed, words) if entry.call == call)
        started = next((time for time in times if time is not None), None)
    request = LatestRequest(
        at=now,
        fingerprint=fingerprint,
        line_count=len(alignment.places),
        start=session.cold_count + alignment.places[0],
        shows_answers=True,
        shows_call_start=not alignment.places[0],
        question=QuestionRef(call, turn),
        name_digest=attempt.name_digest,
        ended=answer.ended_at,
        finished=answer.finished and bool(answer.ended_at),
    )
    return msgspec.structs.replace(
        session,
        entries=(*entries[:-1], confirmed, words, answer_entry(answer, words, now)),
        next_turn=turn + 1,
        latest_request=request,
        user=user,
        started=started,
        created=session.created or now,
        updated=now,
    )


def can_be_continued(session: Session, speech: Speech, alignment: Alignment | None) -> bool:
    """Whether a session's newest entries are exactly the lines of a recorded window, and its answer.

    Only then may ``continuation`` compare bytes. ``alignment`` is the window's, if it was aligned.
    """
    entries, unchanged = session.entries, 0 if alignment is None else alignment.unchanged
    lines = speech.lines[-NEW_LINES:] if unchanged else speech.lines
    count = unchanged + len(lines)
    if (
        count >= len(entries)
        or not lines
        or lines[-1].role != "user"
        or entries[-1].role != "assistant"
        or entries[0].call != session.call
        or session.deletion is not None
    ):
        return False
    if not unchanged:
        roles = [*map(_role, lines)]
        if (
            not {"user", "assistant"}.issuperset(roles)
            or ("assistant", "assistant") in pairwise(roles)
            or any(map(_tool_calls, entries[-count - 1 :]))
            or order_by_turn(lines) is not None
        ):
            return False
    for entry, line in zip(entries[-len(lines) - 1 : -1], lines, strict=True):
        if (
            entry.role != line.role
            or entry.turn_id != turn_id_of(line)
            or not isinstance(entry.content, str)
            or not shows_as_recorded(entry, line)
        ):
            return False
    return True
