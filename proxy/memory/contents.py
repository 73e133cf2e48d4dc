"""A session as one list of messages in Agora's own shape, to be carried from one store to another."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from filters.message import Message
from proxy.memory.heard import entry_of
from proxy.memory.session import REASONING, Entry, Session, message_of
from proxy.memory.speech import is_speech

_OTHERS = "*"
_NUMBERED = frozenset({"user", "assistant"})


def contents(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Entries as an engine would replay them."""
    return [_shown(entry) for entry in entries]


def imported(messages: Sequence[Message], *, now: float) -> Session:
    """The session that such a list tells of; ``now`` is in seconds since 1970.

    The order stays as it is and nothing is compared, since a list that was exported is clean; what is no
    speech is left out. A turn number that goes back begins a new life.
    """
    entries = numbered(list(filter(is_speech, messages)), now=now)
    user = next((entry.user for entry in entries if entry.role == "user" and entry.user), None)
    life, turns = (entries[-1].life, entries[-1].turn + 1) if entries else (0, 0)
    return Session(entries=entries, life=life, turns=turns, user=user, created=now, updated=now)


def numbered(messages: Iterable[Message], *, now: float) -> tuple[Entry, ...]:
    """An entry for each message, in their order, with the turns that their numbers tell of."""
    entries: list[Entry] = []
    for message in messages:
        entries.append(_next(_entry(message, now), entries))
    return tuple(entries)


def _entry(message: Message, now: float) -> Entry:
    entry = entry_of(message, life=0, turn=0, now=now)
    reasoning = message.others.get(REASONING)
    return msgspec.structs.replace(entry, reasoning=reasoning) if isinstance(reasoning, str) else entry


def _shown(entry: Entry) -> dict[str, Any]:
    message: dict[str, Any] = msgspec.to_builtins(message_of(entry))
    others: dict[str, Any] = message.pop(_OTHERS)
    return message | others


def _next(entry: Entry, before: Sequence[Entry]) -> Entry:
    if not before:
        return entry
    last = before[-1]
    if entry.role in _NUMBERED and _goes_back(entry, last):
        return msgspec.structs.replace(entry, life=last.life + 1, turn=0)
    begins = entry.role == "user" and (entry.engine_turn is None or entry.engine_turn != last.engine_turn)
    return msgspec.structs.replace(entry, life=last.life, turn=last.turn + begins)


def _goes_back(entry: Entry, last: Entry) -> bool:
    return None not in {entry.engine_turn, last.engine_turn} and (entry.engine_turn or 0) < (
        last.engine_turn or 0
    )
