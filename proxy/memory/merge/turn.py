"""One turn as it went by, for memory to take in."""

from collections.abc import Sequence
from typing import Final

import msgspec

from filters.message import Message
from proxy.answer.transcript import Transcript, transcript
from proxy.memory.compaction import Window, fit
from proxy.memory.errors import TurnTooLong
from proxy.memory.merge.answer import Answer, apply_answer
from proxy.memory.merge.request import apply_request
from proxy.memory.redaction.view import UNREDACTED, WindowRedaction
from proxy.memory.session import NO_ATTEMPT, Attempt, Entry, Session, ShownFacts, with_positions
from proxy.memory.speakers import with_speakers
from proxy.memory.speech import speech_of
from proxy.memory.stores.store import Key
from proxy.memory.view import SessionView

_MOST: Final = 20_000


class TurnRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One turn as it went by: the client's window, and the answer's bytes.

    ``at`` is when the request arrived, in seconds since 1970. ``user`` is who called, where the request says
    so, and ``by_message`` whether it is its newest message that does; ``turn`` is the engine's number of the
    turn it asks for, and ``model`` what was asked. ``room`` is how many messages of the user it could be
    shown, where some had to be left out: ``shown`` are the messages, ``tools`` their tools as JSON, and
    ``told`` the facts among them. ``again`` is whether the model was asked again within it: it has counted
    more than was shown. ``read`` is what the turn read of the session, where it could; ``attempt`` is what
    the request says of itself, and ``ended`` when the answer did.
    """

    key: Key
    user: str | None = None
    by_message: bool = False
    turn: int | None = None
    model: str | None = None
    window: Sequence[Message]
    answer: bytes
    at: float
    room: int | None = None
    shown_facts: ShownFacts | None = None
    view: SessionView | None = None
    shown: Sequence[Message] = ()
    tools: bytes = b""
    again: bool = False
    attempt: Attempt = NO_ATTEMPT
    ended_at: float = 0.0

    @property
    def placed_facts(self) -> ShownFacts | None:
        """The facts that were told, each with its place in the prompt."""
        return with_positions(self.shown_facts, self.shown)


def without_view(said: TurnRecord) -> TurnRecord:
    """A turn that has to wait, without what it read: its session will have moved on by then."""
    return said if said.view is None else msgspec.structs.replace(said, view=None)


def prepare_write(
    before: Session, changed: Session, window: Window, *, now: float
) -> tuple[Session, Sequence[Entry]]:
    """What is to be held of a session that was changed.

    Summaries keep it small, by whole turns. Raises TurnTooLong where a turn that is not over has more than
    20,000 messages, and goes on.
    """
    session, moved = fit(before, changed, window, now=now)
    if len(session.entries) > max(_MOST, len(before.entries)):
        raise TurnTooLong(_MOST)
    return session, moved


def is_weighty(read: SessionView) -> bool:
    """Whether a turn could be too long once its window is taken in."""
    return len(read.session.entries) + len(read.speech.lines) >= _MOST


def overgrows(read: SessionView, window: Window, attempt: Attempt, *, now: float) -> bool:
    """Whether a turn will be too long to be held once it is answered."""
    before = read.session
    known, _ = apply_request(before, read.speech, now=now, attempt=attempt, replay=read.alignment)
    session, _ = fit(before, known, window, now=now)
    return known is not before and len(session.entries) >= max(_MOST, len(before.entries))


def apply_turn(
    session: Session,
    said: TurnRecord,
    told: Transcript | None = None,
    *,
    reasoning: bool = False,
    veil: WindowRedaction = UNREDACTED,
) -> Session:
    """What is held after a turn; the same turn again changes nothing, and a failed one neither.

    ``told`` is what was said in it, where that was read. ``reasoning`` says whether that is kept, and
    ``veil`` what memory may not see.
    """
    told = told or transcript(said.answer)
    if not told.has_content:
        return session
    told, (session, window) = _redacted(told, veil), _beside(session, said, veil)
    session = with_speakers(session, said.user, window, said.placed_facts, by_message=said.by_message)
    speech, replay = (
        (said.view.speech, said.view.alignment_with(session)) if said.view else (speech_of(window), None)
    )
    known, turn = apply_request(session, speech, now=said.at, attempt=said.attempt, replay=replay)
    answer = Answer(
        question=turn,
        text=told.text,
        tool_calls=told.complete_calls,
        reasoning=told.reasoning if reasoning else None,
        finished=told.finished,
        reached=told.has_content,
        ended_at=said.ended_at,
        turn_id=said.turn,
        user=None if said.by_message else said.user,
    )
    return apply_answer(known, answer, now=said.at)


def _beside(session: Session, said: TurnRecord, veil: WindowRedaction) -> tuple[Session, Sequence[Message]]:
    """The session and the window as one can be laid beside the other."""
    if said.view is not None:
        return session, said.view.veiled.window
    session, veiled = veil.view(session, said.window)
    return session, veiled.window


def _redacted(told: Transcript, veil: WindowRedaction) -> Transcript:
    """An answer as memory may see it."""
    redaction, calls = veil.redaction, told.tool_calls
    if not redaction:
        return told
    text = told.text if told.finished else veil.without_partial_match(told.text)
    return msgspec.structs.replace(
        told,
        text=redaction.text(text),
        tool_calls=redaction.tool_calls(calls) if calls else calls,
        reasoning=redaction.text(told.reasoning) if told.reasoning else told.reasoning,
    )
