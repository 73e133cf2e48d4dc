"""What an engine replays and what is held, brought together: memory holds what the caller heard."""

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from filters.message import Message
from proxy.memory.absence import gone
from proxy.memory.heard import renewed
from proxy.memory.replay import Replay, last_user, read
from proxy.memory.segment import START, Turn
from proxy.memory.session import Entry, Session, message_of
from proxy.memory.weaving import woven


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer as it left the answer filters.

    ``turn`` is the turn that it answers, as ``asked`` tells; ``finished`` is false where the stream broke off
    or the client hung up; ``reached`` is whether anything with content reached the client.
    """

    turn: Turn | None
    text: str = ""
    tool_calls: list[dict[str, Any]] | None = None
    finished: bool = True
    reached: bool = True


def reconcile(held: Session, window: Sequence[Message], *, now: float) -> Session:
    """What is held after a request that replays ``window``; the same request again changes nothing.

    ``now`` is in seconds since 1970. System messages, silence prompts and the like are passed over.
    """
    replay = read(held, window)
    if not replay.spoken or replay.stale:
        return held
    session = woven(held, replay, gone(replay), now=now)
    if session == held:
        return held
    return msgspec.structs.replace(
        session,
        user=held.user or next((m.user for m in replay.spoken if m.role == "user" and m.user), None),
        began=_began(session) if replay.anew or held.began is None else held.began,
        created=held.created or now,
        updated=now,
    )


def _began(session: Session) -> int | float | None:
    entries = (entry for entry in session.entries if entry.life == session.life)
    return next((entry.timestamp for entry in entries if entry.timestamp is not None), None)


def asked(held: Session, window: Sequence[Message]) -> Turn | None:
    """The turn that ``window`` asks to be answered, once it is held; ``None`` when it is superseded."""
    replay = read(held, window)
    place = None if replay.asked is None or replay.anew else replay.places[replay.asked]
    if place is None or place < 0 or replay.stale:
        return None
    return Turn(held.life, replay.held[place].turn)


def answered(held: Session, answer: Answer, *, now: float) -> Session:
    """What is held after a turn was answered: the answer as generated, until a window shows what was heard.

    A turn of which nothing reached the client, or whose words were superseded or withdrawn, changes nothing.
    """
    if answer.turn is None or not answer.reached or not (answer.text.strip() or answer.tool_calls):
        return held
    turn = [i for i, entry in enumerate(held.entries) if (entry.life, entry.turn) == answer.turn]
    question = next((held.entries[i] for i in turn if held.entries[i].role == "user"), None)
    if question is None:
        return held
    said = _said(answer, question, now)
    kept = [held.entries[i] for i in turn if not held.entries[i].pending]
    before, after = held.entries[: turn[0]], held.entries[turn[-1] + 1 :]
    entries = (*before, *kept, said, *after)
    if _but_for_time(entries) == _but_for_time(held.entries):
        return held
    return msgspec.structs.replace(held, entries=entries, updated=now)


def marked(held: Session, window: Sequence[Message], replay: Replay | None = None) -> Sequence[Message]:
    """The window with answers marked as interrupted where the engine replays less than was generated.

    An answer that the engine marks itself is left as it is, and so is everything else. ``replay`` is the
    window beside what is held, where it has been read already.
    """
    replay = replay or read(held, window)
    cut = {
        id(message): original
        for message, place in zip(replay.spoken, replay.places, strict=True)
        if place >= 0 and (original := _unmarked(replay.held[place], message))
    }
    return [_marked(m, cut[id(m)]) if id(m) in cut else m for m in window] if cut else window


def missing(
    held: Session,
    window: Sequence[Message],
    replay: Replay | None = None,
    *,
    behind: Turn = START,
    also: Collection[int] = (),
) -> tuple[Message, ...]:
    """What the engine no longer replays and memory still has of this life, in order, of turns ``behind`` one.

    It is what stands before the window's first line, and ``also`` what stands at these positions; a turn
    that the window supersedes is not missing.
    """
    replay = replay or read(held, window)
    first = _first(replay)
    if not first and not also:
        return ()
    lost = gone(replay)
    places = sorted({*range(first), *also} - lost)
    left = (replay.held[h] for h in places)
    return tuple(message_of(entry) for entry in left if entry.place > behind)


def _first(replay: Replay) -> int:
    """Where in ``held`` the window begins."""
    start = min(replay.matched, default=len(replay.held))
    return min(start, last_user(replay.held) or 0) if replay.stale else start


def _unmarked(entry: Entry, message: Message) -> str | None:
    """All that was generated, where the message is a part of it and does not say so."""
    if message.role != "assistant" or message.interrupted:
        return None
    if entry.content == message.content and not entry.interrupted:
        return None
    entry = renewed(entry, message)
    return entry.original if entry.interrupted else None


def _marked(message: Message, original: str) -> Message:
    marks = {**(message.metadata or {}), "interrupted": True, "original": original}
    return msgspec.structs.replace(message, metadata=marks)


def _said(answer: Answer, question: Entry, now: float) -> Entry:
    return Entry(
        role="assistant",
        turn=question.turn,
        life=question.life,
        engine_turn=question.engine_turn,
        content=answer.text or None,
        tool_calls=answer.tool_calls,
        source="llm",
        pending=True,
        broken=not answer.finished,
        recorded=now,
    )


def _but_for_time(entries: Sequence[Entry]) -> list[Entry]:
    return [msgspec.structs.replace(entry, recorded=0.0) for entry in entries]
