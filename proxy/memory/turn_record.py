"""The record of a turn that has ended, and the session after it."""

from collections.abc import Sequence
from typing import Final

import msgspec

from filters.message import Message, weight
from proxy.answer.transcript import Transcript, transcript
from proxy.memory.compaction import SessionLimits, fit
from proxy.memory.errors import TurnTooLong
from proxy.memory.merge.answer import Answer, apply_answer
from proxy.memory.merge.continuation import append_turn
from proxy.memory.merge.request import apply_request
from proxy.memory.redacted_view import UNREDACTED, WindowRedaction
from proxy.memory.session import (
    NO_ATTEMPT,
    Attempt,
    Entry,
    Session,
    ShownCall,
    ShownFacts,
    decoded_lines,
)
from proxy.memory.speakers import with_prompts, with_speakers
from proxy.memory.speech import message_without_media, speech_of
from proxy.memory.stores.store import Key
from proxy.memory.view import SessionView

CUT_MARK: Final = "[…]"
"""Stands at the end of an answer of which more went to the client than memory takes in."""
_MAX_ENTRIES: Final = 20_000


class TurnRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One turn that has ended: the client's window, the answer's bytes, and what memory needs of both."""

    key: Key
    user: str | None = None
    """The user whom the request names."""
    user_from_message: bool = False
    """Whether only the newest message names that user."""
    turn_id: int | None = None
    """The platform's number of the turn."""
    model: str | None = None
    """The model that was asked."""
    window: Sequence[Message]
    """The client's messages; with a condensed ``view``, the newest lines alone."""
    answer: bytes
    at: float
    """When the request arrived, in seconds since 1970."""
    room: int | None = None
    """How many of the user's messages fitted into the prompt, if some did not."""
    shown_facts: ShownFacts | None = None
    shown_call: ShownCall | None = None
    """The facts in the prompt, and the earlier call."""
    view: SessionView | None = None
    """The session as the turn read it."""
    prompt: Sequence[Message] = ()
    tools: bytes = b""
    """What the model got, and its tools as JSON, if their tokens are to be counted."""
    had_tool_rounds: bool = False
    """Whether the model's token count is for more than this prompt."""
    attempt: Attempt = NO_ATTEMPT
    """The request's name, and whether it is a retry."""
    ended_at: float = 0.0
    """When the answer ended."""
    size: int = 0
    """About how many bytes the window and the answer have together."""
    cancelled: bool = False
    """Whether the client hung up, or a newer request superseded the turn, before the answer's end."""
    cut: bool = False
    """Whether the client got more than ``answer``."""
    transcript: Transcript | None = None
    """The decoded answer, once it is there; the bytes of a large answer are dropped then."""


def without_view(record: TurnRecord) -> TurnRecord:
    """The record without its view, for a turn that waits: its session changes meanwhile."""
    view, window = record.view, record.window
    if view and view.alignment and view.is_condensed:
        window = decoded_lines(view.line_bytes, len(view.alignment.places))
    return msgspec.structs.replace(record, view=None, window=window)


def record_without_media(record: TurnRecord) -> TurnRecord:
    """The record without pictures, sounds and files, which are never recorded."""
    window, prompt = (
        [message_without_media(message) if message.role == "user" else message for message in messages]
        for messages in (record.window, record.prompt)
    )
    others = len(record.view.line_bytes) if record.view and record.view.is_condensed else 0
    size = sum(map(weight, window)) + others + len(record.answer)
    return msgspec.structs.replace(record, window=window, prompt=prompt, size=size)


def apply_turn(
    session: Session,
    record: TurnRecord,
    answer: Transcript | None = None,
    *,
    reasoning: bool = False,
    redaction: WindowRedaction = UNREDACTED,
) -> Session:
    """The session after a turn. Without an answer nothing changes, nor with the same turn again.

    ``answer`` is the transcript of the turn's answer, if it was decoded already; one that is cut gets ``[…]``
    at its end. ``reasoning`` is whether the model's reasoning is kept, and ``redaction`` marks what must not
    be stored.
    """
    answer = answer or transcript(record.answer)
    if not answer.has_content:
        return session
    before, whole_answer = session, answer
    rules = redaction.rules
    if rules.enabled:
        words = answer.text if answer.finished else redaction.without_partial_match(answer.text)
        calls, reasons = answer.tool_calls, answer.reasoning
        answer = msgspec.structs.replace(
            answer,
            text=rules.text(words),
            tool_calls=rules.tool_calls(calls) if calls else calls,
            reasoning=rules.text(reasons) if reasons else reasons,
        )
    if answer.cut:
        answer = msgspec.structs.replace(answer, text=f"{answer.text} {CUT_MARK}".lstrip())
    view = record.view
    if view is None:
        session, redacted = redaction.view(session, record.window)
        window = redacted.window
    else:
        window = view.redacted.window
    speech = view.speech if view else speech_of(window)
    if speech.prompts:
        session = with_prompts(session, speech.prompts)
    session = with_speakers(
        session,
        record.user,
        window,
        record.shown_facts,
        by_message=record.user_from_message,
    )
    if record.shown_call:
        session = msgspec.structs.replace(session, shown_call=record.shown_call)
    generated = Answer(
        text=answer.text,
        tool_calls=answer.complete_calls,
        reasoning=answer.reasoning if reasoning else None,
        finished=answer.finished,
        cancelled=record.cancelled,
        ended_at=record.ended_at,
        turn_id=record.turn_id,
        user=None if record.user_from_message else record.user,
    )
    alignment = view.alignment if view and view.has_same_entries(session) else None
    if view and alignment:
        appended = append_turn(
            session, alignment, view.fingerprint, generated, attempt=record.attempt, now=record.at
        )
        if appended is not None:
            return appended
    if view and view.is_condensed:
        record = without_view(record)
        return apply_turn(before, record, whole_answer, reasoning=reasoning, redaction=redaction)
    session, question = apply_request(
        session,
        speech,
        now=record.at,
        attempt=record.attempt,
        fingerprint=view.fingerprint if view else None,
        alignment=alignment,
    )
    generated = msgspec.structs.replace(generated, question=question)
    return apply_answer(session, generated, now=record.at)


def prepare_write(
    before: Session, changed: Session, limits: SessionLimits, *, now: float
) -> tuple[Session, Sequence[Entry]]:
    """The changed session as it is to be written, and the entries that move to its cold part.

    Whole turns give way to summaries. Raises TurnTooLong where one turn has more than 20,000 messages.
    """
    session, moved = fit(before, changed, limits, now=now)
    if len(session.entries) > max(_MAX_ENTRIES, len(before.entries)):
        raise TurnTooLong(_MAX_ENTRIES)
    return session, moved


def may_overgrow(view: SessionView) -> bool:
    """Whether a turn may be too long to be recorded; ``overgrows`` decides."""
    return len(view.session.entries) + len(view.speech.lines) >= _MAX_ENTRIES


def overgrows(view: SessionView, limits: SessionLimits, attempt: Attempt, *, now: float) -> bool:
    """Whether the turn will be too long to be recorded once it is answered."""
    before = view.session
    session, _ = apply_request(
        before,
        view.speech,
        now=now,
        attempt=attempt,
        fingerprint=view.fingerprint,
        alignment=view.alignment,
    )
    cut, _ = fit(before, session, limits, now=now)
    return session is not before and len(cut.entries) >= max(_MAX_ENTRIES, len(before.entries))
