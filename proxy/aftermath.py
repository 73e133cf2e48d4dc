"""What is held of a session once a turn has gone by: values in, values out."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from filters.message import Message
from proxy.answer.transcript import Transcript, transcript
from proxy.memory.faults import Overgrown
from proxy.memory.reconcile.answer import Answer, answered
from proxy.memory.reconcile.reconcile import taken
from proxy.memory.redaction.view import UNREDACTED, WindowRedaction
from proxy.memory.session.retry import Attempt
from proxy.memory.session.session import Session, encode
from proxy.memory.session.speaker import knowing
from proxy.memory.sight import Reading
from proxy.memory.speech.speech import spoken
from proxy.memory.summaries.compaction import Window, fitted
from proxy.said import Said

_MOST: Final = 20_000


class Kept(NamedTuple):
    """A session as it is to be held, its bytes, and those of what moves to its cold part."""

    session: Session
    blob: bytes
    cold: list[bytes]


def kept(before: Session, changed: Session, window: Window, *, now: float) -> Kept:
    """What is to be held of a session that was changed.

    Summaries keep it small, by whole turns. Raises Overgrown where a turn that is not over has more than
    20,000 messages, and goes on.
    """
    session, moved = fitted(before, changed, window, now=now)
    if len(session.entries) > max(_MOST, len(before.entries)):
        raise Overgrown(_MOST)
    return Kept(session, encode(session), [msgspec.msgpack.encode(entry) for entry in moved])


def is_weighty(read: Reading) -> bool:
    """Whether a turn could be too long once its window is taken in."""
    return len(read.session.entries) + len(read.said.lines) >= _MOST


def overgrows(read: Reading, window: Window, attempt: Attempt, *, now: float) -> bool:
    """Whether a turn will be too long to be held once it is answered."""
    before = read.session
    known, _ = taken(before, read.said, now=now, attempt=attempt, replay=read.replay)
    session, _ = fitted(before, known, window, now=now)
    return known is not before and len(session.entries) >= max(_MOST, len(before.entries))


def after(
    session: Session,
    said: Said,
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
    if not told.reached:
        return session
    told, (session, window) = _redacted(told, veil), _beside(session, said, veil)
    session = knowing(session, said.user, window, said.telling, by_message=said.by_message)
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


def _beside(session: Session, said: Said, veil: WindowRedaction) -> tuple[Session, Sequence[Message]]:
    """The session and the window as one can be laid beside the other."""
    if said.read is not None:
        return session, said.read.veiled.window
    session, veiled = veil.beside(session, said.window)
    return session, veiled.window


def _redacted(told: Transcript, veil: WindowRedaction) -> Transcript:
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
