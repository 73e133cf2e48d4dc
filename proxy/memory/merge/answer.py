"""An answer as it left, put to the words that it answers."""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from proxy.memory.align.line import CUT, Line, similarity
from proxy.memory.merge.builder import position_of
from proxy.memory.merge.entries import renew_entry
from proxy.memory.session import Entry, LatestRequest, QuestionRef, Session, message_of, with_unheard
from proxy.memory.wording import continues

_NEAR = 6


class Answer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An answer as it left the answer filters.

    ``turn`` is the turn that it answers, as ``asked`` tells; ``finished`` is false where the stream broke off
    or the client hung up; ``reached`` is whether anything with content reached the client. ``ended`` is when
    it ended, in seconds since 1970, 0 where nobody knows. ``number`` is the engine's own of the turn that the
    request asks for, where it says so, and ``asker`` who asks.
    """

    question: QuestionRef | None
    text: str = ""
    tool_calls: list[dict[str, Any]] | None = None
    reasoning: str | None = None
    finished: bool = True
    reached: bool = True
    ended_at: float = 0.0
    turn_id: int | None = None
    user: str | None = None


def apply_answer(held: Session, answer: Answer, *, now: float) -> Session:
    """What is held after a turn was answered: the answer as generated, until a window shows what was heard.

    ``now`` is when the turn was asked for, in seconds since 1970. A turn of which nothing reached the client,
    or whose words were superseded or withdrawn, changes nothing.
    """
    if answer.question is None or not answer.reached or not (answer.text.strip() or answer.tool_calls):
        return held
    if answer.question.unasked:
        said = _spoken(answer, now, turn=answer.question.turn, life=answer.question.call)
        number = _number(answer, held.entries[-1]) if held.entries else answer.turn_id
        return _unasked(held, msgspec.structs.replace(said, engine_turn=number))
    question = position_of(held.entries, answer.question)
    if question is None:
        return held
    held = _asked_by(held, question, answer.user)
    said = _said(answer, held.entries[question], now)
    if _late(held, question, now):
        return _overtaken(held, said, question)
    return _ended(_put(held, said, question), held, answer)


def _asked_by(held: Session, question: int, asker: str | None) -> Session:
    """With who said the words that are answered, where they name nobody and may be another's than before."""
    words = held.entries[question]
    known = words.is_injected or words.asking_user or words.user not in {None, held.alias}
    if asker is None or known or (asker == held.user and not held.shared):
        return held
    entries = (
        *held.entries[:question],
        msgspec.structs.replace(words, asking_user=asker),
        *held.entries[question + 1 :],
    )
    return msgspec.structs.replace(held, entries=entries)


def _ended(session: Session, held: Session, answer: Answer) -> Session:
    """The session with the end of the answer to the newest request, where that is what was put to it."""
    newest = session.latest_request
    if session is held or newest is None or newest.question != answer.question or not answer.ended_at:
        return session
    newest = msgspec.structs.replace(newest, ended=answer.ended_at, finished=answer.finished)
    return msgspec.structs.replace(session, latest_request=newest)


def _unasked(held: Session, said: Entry) -> Session:
    """With what a model says on an instruction alone, behind all that had been said by then."""
    newest, now = held.latest_request, said.recorded_at
    if newest is not None and now < newest.at and held.entries:
        return _unasked_before(held, said)
    again = [e for e in held.entries if e.pending and newest is not None and e.recorded_at >= newest.at]
    if any(entry.recorded_at > now for entry in again):
        return held
    kept = (entry for entry in held.entries if entry not in again)
    session = _with(held, (*kept, said), again, now=now)
    return msgspec.structs.replace(session, next_turn=max(session.next_turn, said.turn + 1))


def _unasked_before(held: Session, said: Entry) -> Session:
    """The same, where a newer request has overtaken it."""
    entries, now = held.entries, said.recorded_at
    place = next((i for i in range(len(entries) - 1, -1, -1) if entries[i].recorded_at <= now), -1)
    beside = entries[max(place, 0)]
    said = msgspec.structs.replace(said, turn=beside.turn, call=beside.call)
    if _shown(entries, said, place) is not None:
        return _overtaken(held, said, place)
    if any(entry.pending and entry.generated == said.generated for entry in entries):
        return held
    if _passed_over(held, said, place) or (place < 0 and held.has_older):
        return with_unheard(held, [said])
    return _with(held, (*entries[: place + 1], said, *entries[place + 1 :]), (), now=now)


def _late(held: Session, question: int, now: float) -> bool:
    """Whether a newer request goes on from other words than these."""
    newest = held.latest_request
    if newest is None or now >= newest.at:
        return False
    return newest.question is None or position_of(held.entries, newest.question) != question


def _put(held: Session, said: Entry, question: int) -> Session:
    """The answer behind all that follows its question; it takes the place of an earlier one."""
    follows = _follows(held.entries, question)
    waiting = [held.entries[i] for i in follows if held.entries[i].pending]
    if any(entry.recorded_at > said.recorded_at for entry in _last_pending(held.entries, follows)):
        return held
    kept = [held.entries[i] for i in follows if not held.entries[i].pending]
    after = held.entries[follows.stop :]
    return _with(held, (*held.entries[: question + 1], *kept, said, *after), waiting, now=said.recorded_at)


def _last_pending(entries: Sequence[Entry], follows: range) -> Iterator[Entry]:
    """The answers behind all that was heard: one that stands before that is of an earlier request."""
    return takewhile(lambda entry: entry.pending, (entries[i] for i in reversed(follows)))


def _overtaken(held: Session, said: Entry, question: int) -> Session:
    """The answer as a newer window shows it; unheard, where that window spans its place and does not."""
    shown = _shown(held.entries, said, question)
    if shown is not None:
        entry = held.entries[shown]
        heard = _known(renew_entry(said, message_of(_as_shown(entry))), entry)
        return _with(
            held, (*held.entries[:shown], heard, *held.entries[shown + 1 :]), (), now=said.recorded_at
        )
    return with_unheard(held, [said]) if _passed_over(held, said, question) else _put(held, said, question)


def _shown(entries: Sequence[Entry], said: Entry, question: int) -> int | None:
    """Where the answer is held as heard: behind its question, or behind the words that cut it."""
    line = Line(said)
    near = range(question + 1, min(len(entries), question + 1 + _NEAR))
    fitting = (i for i in near if entries[i].role == "assistant" and not entries[i].pending)
    return next((i for i in fitting if similarity(Line(message_of(entries[i])), line) >= CUT), None)


def _as_shown(entry: Entry) -> Entry:
    """The entry as a window showed it, where what is held to be its original is another answer."""
    if entry.original is None or continues(entry.original, entry.text):
        return entry
    return msgspec.structs.replace(entry, original=None, interrupted=False, interrupt_timestamp=None)


def _known(said: Entry, entry: Entry) -> Entry:
    """What the engine told of an entry stays as it is."""
    return msgspec.structs.replace(
        said, turn=entry.turn, engine_turn=entry.engine_turn, recorded_at=entry.recorded_at
    )


def _passed_over(held: Session, said: Entry, question: int) -> bool:
    newest = held.latest_request
    if newest is None or held.cold_count + question < newest.start:
        return False
    return newest.shows_answers or said.broken


def _follows(entries: Sequence[Entry], question: int) -> range:
    """What stands behind a question, up to the next words of the user or the turn's end."""
    asked, end = entries[question], question + 1
    while end < len(entries) and entries[end].role != "user" and entries[end].turn == asked.turn:
        end += 1
    return range(question + 1, end)


def _with(held: Session, entries: tuple[Entry, ...], replaced: Sequence[Entry], *, now: float) -> Session:
    if len(entries) == len(held.entries) and all(map(_same_but_for_time, entries, held.entries)):
        return held
    session = msgspec.structs.replace(
        held, entries=entries, latest_request=_shifted(held, entries), updated=max(now, held.updated)
    )
    return with_unheard(session, replaced)


def _shifted(held: Session, entries: Sequence[Entry]) -> LatestRequest | None:
    """The newest window begins where its first line stands now, or what was put in the place of that."""
    newest, more = held.latest_request, len(entries) - len(held.entries)
    since = -1 if newest is None else newest.start - held.cold_count
    if newest is None or not more or not 0 <= since < len(held.entries):
        return newest
    first = held.entries[since]
    if since < len(entries) and entries[since] is first:
        return newest
    place = next((i for i, entry in enumerate(entries) if entry is first), since + more)
    return msgspec.structs.replace(newest, start=held.cold_count + place)


def _said(answer: Answer, words: Entry, now: float) -> Entry:
    said = _spoken(answer, now, turn=words.turn, life=words.call)
    return msgspec.structs.replace(said, engine_turn=_number(answer, words))


def _number(answer: Answer, words: Entry) -> int | None:
    """The engine's number of an answer: a turn in which nobody asked anything may have begun since."""
    if words.engine_turn is None or answer.turn_id is None:
        return words.engine_turn
    return max(words.engine_turn, answer.turn_id)


def _spoken(answer: Answer, now: float, *, turn: int, life: int) -> Entry:
    return Entry(
        role="assistant",
        turn=turn,
        call=life,
        content=answer.text or None,
        tool_calls=answer.tool_calls,
        reasoning=answer.reasoning,
        source="llm",
        pending=True,
        broken=not answer.finished,
        recorded_at=now,
    )


def _same_but_for_time(one: Entry, other: Entry) -> bool:
    return one is other or msgspec.structs.replace(one, recorded_at=other.recorded_at) == other
