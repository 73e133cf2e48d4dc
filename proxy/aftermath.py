"""What is held after a turn."""

from collections.abc import Sequence

import msgspec

from filters.message import Message
from proxy.answer.transcript import Transcript, transcript
from proxy.memory.reconcile.answer import Answer, answered
from proxy.memory.reconcile.reconcile import taken
from proxy.memory.redaction.veil import BARE, Veil
from proxy.memory.session.session import Session
from proxy.memory.session.speaker import knowing
from proxy.memory.speech.speech import spoken
from proxy.said import Said


def after(
    session: Session,
    said: Said,
    told: Transcript | None = None,
    *,
    reasoning: bool = False,
    veil: Veil = BARE,
) -> Session:
    """What is held after a turn; the same turn again changes nothing, and a failed one neither.

    ``told`` is what was said in it, where that was read. ``reasoning`` says whether that is kept, and
    ``veil`` what memory may not see.
    """
    told = told or transcript(said.answer)
    if not told.reached:
        return session
    told = _redacted(told, veil)
    session, window = _beside(session, said, veil)
    session = knowing(session, said.user, window, said.told, by_message=said.by_message)
    speech, replay = (said.read.said, said.read.of(session)) if said.read else (spoken(window), None)
    known, turn = taken(session, speech, now=said.at, attempt=said.attempt, replay=replay)
    answer = Answer(
        turn=turn,
        text=told.text,
        tool_calls=told.whole_calls,
        reasoning=told.reasoning if reasoning else None,
        finished=told.finished,
        reached=told.reached,
        ended=said.ended,
        number=said.turn,
        asker=None if said.by_message else said.user,
    )
    return answered(known, answer, now=said.at)


def _beside(session: Session, said: Said, veil: Veil) -> tuple[Session, Sequence[Message]]:
    """The session and the window as one can be laid beside the other."""
    if said.read is not None:
        return session, said.read.veiled.window if said.read.veiled else said.window
    session, veiled = veil.beside(session, said.window)
    return session, veiled.window


def _redacted(told: Transcript, veil: Veil) -> Transcript:
    """An answer as memory may see it."""
    redaction, calls = veil.redaction, told.tool_calls
    if not redaction:
        return told
    text = told.text if told.finished else veil.broken(told.text)
    return msgspec.structs.replace(
        told,
        text=redaction.text(text),
        tool_calls=redaction.calls(calls) if calls else calls,
        reasoning=redaction.text(told.reasoning) if told.reasoning else told.reasoning,
    )
