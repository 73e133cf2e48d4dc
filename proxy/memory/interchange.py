"""A session as one list of messages in Agora's own shape, to be carried from one store to another."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Any

import msgspec

from filters.message import Message, epoch_seconds
from proxy.memory.merge.calls import with_speech_times
from proxy.memory.merge.entries import new_entry
from proxy.memory.session import (
    REASONING,
    START,
    Entry,
    Segment,
    Session,
    TurnRef,
    entries_fingerprint,
    message_of,
)
from proxy.memory.speech import as_tool_call, is_speech

_OTHERS = "*"
_NUMBERED = frozenset({"user", "assistant"})


def contents(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Entries as an engine would replay them."""
    return [_plain(message) for message in shown(entries)]


def shown(entries: Sequence[Entry]) -> Iterator[Message]:
    """Entries as messages; our own answers bear the time of their question until the engine tells one."""
    unit = next((entry.timestamp for entry in entries if entry.timestamp is not None), None)
    for entry in entries:
        message = message_of(entry)
        if unit is not None and entry.pending and entry.timestamp is None and entry.recorded_at:
            message = msgspec.structs.replace(message, timestamp=_written(entry.recorded_at, unit))
        yield message


def imported(messages: Sequence[Message], *, now: float) -> Session:
    """The session that such a list tells of; ``now`` is in seconds since 1970.

    The order stays as it is and nothing is compared, since a list that was exported is clean; what is no
    speech is left out. A turn number that goes back begins a new life. What Agora tells of a talk that is
    over is read as its notice is.
    """
    entries = numbered(list(filter(is_speech, with_speech_times(messages))), now=now)
    user = next((entry.user for entry in entries if entry.role == "user" and entry.user), None)
    life, turns = (entries[-1].call, entries[-1].turn + 1) if entries else (0, 0)
    times = (entry.timestamp for entry in entries if entry.call == life and entry.timestamp is not None)
    return Session(
        entries=tuple(entries),
        call=life,
        next_turn=turns,
        user=user,
        started=next(times, None),
        created=now,
        updated=now,
    )


def numbered(messages: Iterable[Message], *, now: float) -> tuple[Entry, ...]:
    """An entry for each message, in their order, with the turns that their numbers tell of."""
    entries: list[Entry] = []
    for message in messages:
        entries.append(_next(_entry(message, now), entries))
    return tuple(entries)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A summary as it is carried: it stands for the ``messages`` behind those of the former one."""

    text: str
    messages: Annotated[int, msgspec.Meta(ge=0)]
    life: int = 0
    turn: int = 0
    made: float = 0.0
    model: str | None = None
    digest: bool = False


def summaries(session: Session, entries: Sequence[Entry]) -> list[Summary]:
    """A session's summaries, oldest first; ``entries`` are all that it holds."""
    places = [entry.turn_ref for entry in entries]
    ends = [bisect_right(places, segment.end) for segment in session.summaries]
    return [
        Summary(
            text=segment.text,
            messages=end - start,
            life=segment.call,
            turn=segment.turn,
            made=segment.created_at,
            model=segment.model,
            digest=segment.digest,
        )
        for (start, end), segment in zip(pairwise([0, *ends]), session.summaries, strict=True)
    ]


def with_summaries(session: Session, carried: Sequence[Summary]) -> Session:
    """A session that was imported, with the summaries that were carried along.

    Raises ValueError where they stand for more messages than there are.
    """
    segments: list[Segment] = []
    end, reach = 0, START
    for one in carried:
        start, end = end, end + one.messages
        if end > len(session.entries):
            raise ValueError("they stand for more messages than there are")
        told = session.entries[start:end]
        reach = told[-1].turn_ref if told else reach
        segments.append(_segment(one, reach, told))
    return msgspec.structs.replace(session, summaries=tuple(segments))


def _segment(carried: Summary, reach: TurnRef, told: Sequence[Entry]) -> Segment:
    return Segment(
        text=carried.text,
        call=reach.call,
        turn=reach.turn,
        messages=carried.messages,
        fingerprint=entries_fingerprint(told),
        created_at=carried.made,
        model=carried.model,
        digest=carried.digest,
    )


def _entry(message: Message, now: float) -> Entry:
    entry = new_entry(as_tool_call(message), call=0, turn=0, now=now)
    reasoning = message.others.get(REASONING)
    return msgspec.structs.replace(entry, reasoning=reasoning) if isinstance(reasoning, str) else entry


def _written(seconds: float, like: float) -> int | float:
    """A time in seconds as an engine writes it, whose own times look ``like`` this."""
    value = seconds if epoch_seconds(like) == like else 1000 * seconds
    return value if isinstance(like, float) else int(value)


def _plain(message: Message) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(message)
    others: dict[str, Any] = plain.pop(_OTHERS)
    return plain | others


def _next(entry: Entry, before: Sequence[Entry]) -> Entry:
    if not before:
        return entry
    last = before[-1]
    if entry.role in _NUMBERED and _goes_back(entry, last):
        return msgspec.structs.replace(entry, call=last.call + 1, turn=0)
    begins = entry.role == "user" and (entry.engine_turn is None or entry.engine_turn != last.engine_turn)
    return msgspec.structs.replace(entry, call=last.call, turn=last.turn + begins)


def _goes_back(entry: Entry, last: Entry) -> bool:
    return None not in {entry.engine_turn, last.engine_turn} and (entry.engine_turn or 0) < (
        last.engine_turn or 0
    )
