"""Merges an answer into its session, after the words that it answers."""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, Final

import msgspec

from proxy.memory.align.line import CUT, Line, similarity
from proxy.memory.merge.entries import renew_entry
from proxy.memory.session import Entry, QuestionRef, Session, message_of, with_unheard
from proxy.memory.wording import continues

_NEAR: Final = 6


class Answer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An answer that has passed the answer filters.

    ``question`` refers to the words that it answers. ``finished`` is false if the stream broke off, or if the
    turn was ``cancelled`` by a hang-up or a newer request. ``ended_at`` is when it ended, in seconds since
    1970, or 0 if unknown. ``turn_id`` and ``user`` are those of the request.
    """

    question: QuestionRef | None = None
    text: str = ""
    tool_calls: list[dict[str, Any]] | None = None
    reasoning: str | None = None
    finished: bool = True
    cancelled: bool = False
    ended_at: float = 0.0
    turn_id: int | None = None
    user: str | None = None


def apply_answer(session: Session, answer: Answer, *, now: float) -> Session:
    """Returns the session with an answer, which is pending until a window shows how much of it was heard.

    ``now`` is when the request arrived, in seconds since 1970. Nothing changes if nothing of the answer
    reached the client, or if its question was superseded or retracted.
    """
    question = answer.question
    if question is None or not (answer.text.strip() or answer.tool_calls):
        return session
    if question.unasked:
        turn_id = _turn_id(answer, session.entries[-1]) if session.entries else answer.turn_id
        entry = _entry_of(answer, now, turn=question.turn, call=question.call, turn_id=turn_id)
        return _put_unasked(session, entry)
    place = question_place(session.entries, question)
    if place is None:
        return session
    session = _with_asking_user(session, place, answer.user)
    words = session.entries[place]
    entry = answer_entry(answer, words, now)
    latest = session.latest_request
    if latest is not None and now < latest.at:
        # The newer request may have another question.
        newer = None if latest.question is None else question_place(session.entries, latest.question)
        if newer != place or latest.question is None:
            return _put_overtaken(session, entry, place)
    answered = _put(session, entry, place)
    latest = answered.latest_request
    if answered is session or latest is None or latest.question != question or not answer.ended_at:
        return answered
    latest = msgspec.structs.replace(latest, ended=answer.ended_at, finished=answer.finished)
    return msgspec.structs.replace(answered, latest_request=latest)


def answer_entry(answer: Answer, words: Entry, now: float) -> Entry:
    """Returns the entry of an answer to words; its request arrived ``now``, in seconds since 1970."""
    return _entry_of(answer, now, turn=words.turn, call=words.call, turn_id=_turn_id(answer, words))


def _entry_of(answer: Answer, now: float, *, turn: int, call: int, turn_id: int | None) -> Entry:
    return Entry(
        role="assistant",
        turn=turn,
        call=call,
        turn_id=turn_id,
        content=answer.text or None,
        tool_calls=answer.tool_calls,
        reasoning=answer.reasoning,
        source="llm",
        interrupted=answer.cancelled and not answer.finished and bool(answer.text.strip()),
        pending=True,
        broken=not answer.finished,
        recorded_at=now,
    )


def _turn_id(answer: Answer, words: Entry) -> int | None:
    """Returns the turn id of an answer: that of its question, or that of its request if it is newer."""
    if words.turn_id is None or answer.turn_id is None:
        return words.turn_id
    return max(words.turn_id, answer.turn_id)


def _with_asking_user(session: Session, place: int, user: str | None) -> Session:
    """Returns the session with the request's user as the speaker of a question that names none."""
    if user is None or (user == session.user and not session.shared):
        return session
    words = session.entries[place]
    is_known = words.is_injected or words.asking_user or words.user not in {None, session.alias}
    if is_known:
        return session
    words = msgspec.structs.replace(words, asking_user=user)
    entries = (*session.entries[:place], words, *session.entries[place + 1 :])
    return msgspec.structs.replace(session, entries=entries)


def _put(session: Session, answer: Entry, question: int) -> Session:
    """Inserts an answer after the confirmed entries that follow its question, in place of pending ones."""
    entries, end = session.entries, question + 1
    while end < len(entries) and entries[end].role != "user" and entries[end].turn == entries[question].turn:
        end += 1
    following = entries[question + 1 : end]
    if not following:
        return _with_entries(session, (*entries[:end], answer, *entries[end:]), (), now=answer.recorded_at)
    # Only the last ones: a pending answer before a confirmed entry is of an earlier request.
    last_pending: Iterator[Entry] = takewhile(lambda entry: entry.pending, reversed(following))
    if any(entry.recorded_at > answer.recorded_at for entry in last_pending):
        return session
    replaced = [entry for entry in following if entry.pending]
    unchanged = [entry for entry in following if not entry.pending]
    changed = (*entries[: question + 1], *unchanged, answer, *entries[end:])
    return _with_entries(session, changed, replaced, now=answer.recorded_at)


def _put_unasked(session: Session, answer: Entry) -> Session:
    """Inserts an answer to a request without words, only instructions, after all that was said before."""
    entries, latest, now = session.entries, session.latest_request, answer.recorded_at
    if not entries or latest is None or now >= latest.at:
        replaced = [e for e in entries if latest is not None and e.pending and e.recorded_at >= latest.at]
        if any(entry.recorded_at > now for entry in replaced):
            return session
        others = (entry for entry in entries if entry not in replaced)
        session = _with_entries(session, (*others, answer), replaced, now=now)
        return msgspec.structs.replace(session, next_turn=max(session.next_turn, answer.turn + 1))
    # A newer request has overtaken it.
    before = next((i for i in range(len(entries) - 1, -1, -1) if entries[i].recorded_at <= now), -1)
    neighbour = entries[max(before, 0)]
    answer = msgspec.structs.replace(answer, turn=neighbour.turn, call=neighbour.call)
    if _place_where_shown(entries, answer, before) is not None:
        return _put_overtaken(session, answer, before)
    if any(entry.pending and entry.generated == answer.generated for entry in entries):
        return session
    if _is_passed_over(session, answer, before) or (before < 0 and session.has_older):
        return with_unheard(session, [answer])
    changed = (*entries[: before + 1], answer, *entries[before + 1 :])
    return _with_entries(session, changed, (), now=now)


def _put_overtaken(session: Session, answer: Entry, question: int) -> Session:
    """Inserts an answer as a newer window shows it; if the window skips it, it counts as unheard."""
    entries = session.entries
    place = _place_where_shown(entries, answer, question)
    if place is None:
        if _is_passed_over(session, answer, question):
            return with_unheard(session, [answer])
        return _put(session, answer, question)
    entry = entries[place]
    as_shown = entry
    if entry.original is not None and not continues(entry.original, entry.text):
        # The recorded original is of another answer.
        as_shown = msgspec.structs.replace(entry, original=None, interrupted=False, interrupt_timestamp=None)
    heard = msgspec.structs.replace(
        renew_entry(answer, message_of(as_shown)),
        turn=entry.turn,
        turn_id=entry.turn_id,
        recorded_at=entry.recorded_at,
    )
    changed = (*entries[:place], heard, *entries[place + 1 :])
    return _with_entries(session, changed, (), now=answer.recorded_at)


def _place_where_shown(entries: Sequence[Entry], answer: Entry, question: int) -> int | None:
    """Returns the place of the answer as heard: after its question, or after the words that cut it."""
    line = Line(answer)
    near = range(question + 1, min(len(entries), question + 1 + _NEAR))
    heard = (i for i in near if entries[i].role == "assistant" and not entries[i].pending)
    return next((i for i in heard if similarity(Line(message_of(entries[i])), line) >= CUT), None)


def _is_passed_over(session: Session, answer: Entry, question: int) -> bool:
    """Whether the latest window spans the answer's place and does not show the answer."""
    latest = session.latest_request
    if latest is None or session.cold_count + question < latest.start:
        return False
    return latest.shows_answers or answer.broken


def _with_entries(
    session: Session, entries: tuple[Entry, ...], replaced: Sequence[Entry], *, now: float
) -> Session:
    if len(entries) == len(session.entries) and all(
        one is other or msgspec.structs.replace(one, recorded_at=other.recorded_at) == other
        for one, other in zip(entries, session.entries, strict=True)
    ):
        return session
    latest, more = session.latest_request, len(entries) - len(session.entries)
    start = -1 if latest is None else latest.start - session.cold_count
    if latest is not None and more and 0 <= start < len(session.entries):
        # The latest window still begins with its first line, or with the entry that replaced that.
        first = session.entries[start]
        if start >= len(entries) or entries[start] is not first:
            place = next((i for i, entry in enumerate(entries) if entry is first), start + more)
            latest = msgspec.structs.replace(latest, start=session.cold_count + place)
    session = msgspec.structs.replace(
        session, entries=entries, latest_request=latest, updated=max(now, session.updated)
    )
    return with_unheard(session, replaced) if replaced else session


# --- questions ----------------------------------------------------------------------------------------------


def question_place(entries: Sequence[Entry], ref: QuestionRef) -> int | None:
    """Returns the place of the words that a reference names; ``None`` if they are gone or it names none."""
    if ref.unasked:
        return None
    behind = -ref.question - 1
    for place in range(len(entries) - 1, -1, -1):
        if _is_question(entries[place], ref.call, ref.turn):
            if not behind:
                return place
            behind -= 1
    return None


def question_ref(entries: Sequence[Entry], place: int) -> QuestionRef:
    """Returns the reference to the words at a place."""
    call, turn = entries[place].call, entries[place].turn
    return QuestionRef(call, turn, -sum(_is_question(entry, call, turn) for entry in entries[place:]))


def question_before(entries: Sequence[Entry], place: int, call: int, next_turn: int) -> QuestionRef:
    """Returns a reference to the user's last words up to a place, in the same call.

    Without such words, it is the reference of an unasked answer at the end of ``call``.
    """
    words = next((i for i in range(place, -1, -1) if entries[i].role == "user"), None)
    if words is not None and entries[words].call == entries[place].call:
        return question_ref(entries, words)
    is_in_call = bool(entries) and entries[-1].call == call
    return QuestionRef(call, entries[-1].turn if is_in_call else next_turn, 0)


def _is_question(entry: Entry, call: int, turn: int) -> bool:
    return entry.turn == turn and entry.call == call and entry.role == "user"
