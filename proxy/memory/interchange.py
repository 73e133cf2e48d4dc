"""Exports and imports sessions as lists of messages in Agora's format."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Final

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
    disorder,
    entries_fingerprint,
    message_of,
)
from proxy.memory.speakers import speakers
from proxy.memory.speech import as_tool_call, is_speech

_NUMBERED: Final = frozenset({"user", "assistant"})
_ROLES: Final = frozenset({"user", "assistant", "tool", "function"})
_ENTRIES: Final = "entries"
_NOT_EXPORTED: Final = frozenset({"cold_count", "shown_facts", "shown_call", "noted_until"})
"""Fields without a use elsewhere: the messages include the cold part, and facts may be unknown there."""
_ENTRY_FIELDS: Final = {
    field.name: field.encode_name for field in msgspec.structs.fields(Entry) if field.name != "role"
}


def contents(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Returns entries as the JSON of messages that a voice platform would replay."""
    listed = []
    for message in platform_messages(entries):
        fields: dict[str, Any] = msgspec.to_builtins(message)
        others: dict[str, Any] = fields.pop("*")
        listed.append(fields | others)
    return listed


def platform_messages(entries: Sequence[Entry]) -> Iterator[Message]:
    """Yields entries as messages; an answer that was not replayed yet has the time of its question."""
    sample = next((entry.timestamp for entry in entries if entry.timestamp is not None), None)
    for entry in entries:
        message = message_of(entry)
        if sample is not None and entry.pending and entry.timestamp is None and entry.recorded_at:
            # In the unit and the type of the platform's times.
            value = entry.recorded_at if epoch_seconds(sample) == sample else 1000 * entry.recorded_at
            timestamp = value if isinstance(sample, float) else int(value)
            message = msgspec.structs.replace(message, timestamp=timestamp)
        yield message


def session_from_messages(messages: Sequence[Message], *, now: float) -> Session:
    """Makes a session of a list of messages; ``now`` is in seconds since 1970.

    The order stays and nothing is aligned, since an exported list is clean; messages that are no speech are
    left out. A lower turn id begins a new call. Agora's report of an ended call is read like its webhook
    event.
    """
    entries = entries_from_messages(list(filter(is_speech, with_speech_times(messages))), now=now)
    user = next((entry.user for entry in entries if entry.role == "user" and entry.user), None)
    call, next_turn = (entries[-1].call, entries[-1].turn + 1) if entries else (0, 0)
    times = (entry.timestamp for entry in entries if entry.call == call and entry.timestamp is not None)
    return Session(
        entries=entries,
        call=call,
        next_turn=next_turn,
        user=user,
        started=next(times, None),
        created=now,
        updated=now,
    )


def entries_from_messages(messages: Iterable[Message], *, now: float) -> tuple[Entry, ...]:
    """Makes an entry of each message, in order, with calls and turns by the turn ids."""
    entries: list[Entry] = []
    call, turn, turn_id = 0, 0, None
    for message in messages:
        entry = new_entry(as_tool_call(message), call=0, turn=0, now=now)
        if entries:
            if (
                entry.role in _NUMBERED
                and entry.turn_id is not None
                and turn_id is not None
                and entry.turn_id < turn_id
            ):
                call, turn = call + 1, 0
            elif entry.role == "user":
                turn += entry.turn_id is None or entry.turn_id != turn_id
        turn_id = entry.turn_id
        reasoning = message.others.get(REASONING)
        entries.append(
            msgspec.structs.replace(
                entry,
                call=call,
                turn=turn,
                reasoning=reasoning if isinstance(reasoning, str) else entry.reasoning,
            )
        )
    return tuple(entries)


NotBlank = Annotated[str, msgspec.Meta(pattern=r"\S")]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A summary in an export, which covers the ``messages`` after those of the summary before."""

    text: NotBlank
    messages: Annotated[int, msgspec.Meta(ge=0)]
    call: int = msgspec.field(default=0, name="life")
    turn: int = 0
    created_at: float = msgspec.field(default=0.0, name="made")
    model: str | None = None
    extractive: bool = msgspec.field(default=False, name="digest")


def summaries(session: Session, entries: Sequence[Entry]) -> list[Summary]:
    """Returns a session's summaries, the oldest first; ``entries`` are all of its entries."""
    places = [entry.turn_ref for entry in entries]
    ends = [bisect_right(places, segment.end) for segment in session.summaries]
    return [
        Summary(
            text=segment.text,
            messages=end - start,
            call=segment.call,
            turn=segment.turn,
            created_at=segment.created_at,
            model=segment.model,
            extractive=segment.extractive,
        )
        for (start, end), segment in zip(pairwise([0, *ends]), session.summaries, strict=True)
    ]


def with_summaries(session: Session, carried: Sequence[Summary]) -> Session:
    """Returns an imported session with its summaries.

    Raises ValueError if they cover more messages than there are.
    """
    segments: list[Segment] = []
    stop, end = 0, START
    for one in carried:
        start, stop = stop, stop + one.messages
        if stop > len(session.entries):
            raise ValueError("they cover more messages than there are")
        entries = session.entries[start:stop]
        end = entries[-1].turn_ref if entries else end
        segments.append(
            Segment(
                text=one.text,
                call=end.call,
                turn=end.turn,
                messages=one.messages,
                fingerprint=entries_fingerprint(entries),
                created_at=one.created_at,
                model=one.model,
                extractive=one.extractive,
                speakers=tuple(dict.fromkeys(speakers(session, entries))),
            )
        )
    return msgspec.structs.replace(session, summaries=tuple(segments))


_EXPORTED: Final = frozenset(
    field.encode_name for field in msgspec.structs.fields(Session) if field.name not in _NOT_EXPORTED
)


def remainder_fields(session: Session) -> dict[str, Any]:
    """Returns the fields of a whole session for an export beside its messages.

    ``entries`` has for each entry the fields that an import of its message alone would get wrong.
    """
    pairs = zip(
        session.entries, entries_from_messages(platform_messages(session.entries), now=0.0), strict=True
    )
    differences = [
        {
            encoded: value
            for name, encoded in _ENTRY_FIELDS.items()
            if (value := getattr(entry, name)) != getattr(imported, name)
        }
        for entry, imported in pairs
    ]
    fields: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(session, entries=()))
    exported = {name: value for name, value in fields.items() if name in _EXPORTED}
    return ({_ENTRIES: differences} if differences else {}) | exported


def restore_session(messages: Sequence[Message], fields: Mapping[str, msgspec.Raw]) -> Session:
    """Restores the session that was exported as these messages and its ``remainder_fields``.

    Raises ValueError if they do not belong together, or turns are out of order. System messages are left out.
    """
    unknown = next((name for name in fields if name not in _EXPORTED), None)
    if unknown is not None:
        raise ValueError(f"Object contains unknown field `{unknown}`")
    values = {**fields}
    differences = msgspec.json.decode(values.pop(_ENTRIES, b"[]"), type=list[dict[str, Any]])
    if len(messages) != len(differences):
        raise ValueError(f"it has {len(differences)} entries for {len(messages)} messages")
    entries = tuple(
        msgspec.convert({**msgspec.to_builtins(entry), **more, "role": entry.role}, Entry)
        for entry, more in zip(entries_from_messages(messages, now=0.0), differences, strict=True)
        if entry.role in _ROLES
    )
    session = msgspec.json.decode(msgspec.json.encode(values), type=Session)
    session = msgspec.structs.replace(session, entries=entries)
    if (error := disorder(session)) is not None:
        raise ValueError(error)
    return session
