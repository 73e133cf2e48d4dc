"""Entries as a window shows them: new ones, and held ones that it confirms, cuts or rewords."""

from typing import Any

import msgspec
from msgspec import UNSET

from filters.letters import bare
from filters.message import LARGEST, Message
from proxy.memory.align.line import turn_id_of
from proxy.memory.session import Entry
from proxy.memory.speech import without_media
from proxy.memory.wording import continues, ends_alike, offset_of_letters, reordered, same_words

_UNGIVEN = (UNSET, None)
_DOTS = ("...", "…")
_DOTTED = ".… "
_WHOLE: dict[str, Any] = {"interrupted": False, "interrupt_timestamp": None, "original": None}


def new_entry(message: Message, *, life: int, turn: int, now: float) -> Entry:
    """A message that nobody has recorded yet; ``now`` in seconds since 1970."""
    said = {"content": without_media(_given(message.content))} | _cut_by_engine(message, message.text)
    return Entry(
        role=message.role,
        turn=turn,
        call=life,
        engine_turn=turn_id_of(message),
        name=_given(message.name),
        tool_calls=_given(message.tool_calls) or None,
        tool_call_id=_given(message.tool_call_id),
        timestamp=_given(message.timestamp),
        source=message.source,
        user=message.user,
        recorded_at=now,
        **said,
    )


def renew_entry(entry: Entry, message: Message) -> Entry:
    """A held entry as a later window shows it: what was heard is what the window shows."""
    if _as_held(entry, message):
        return entry
    changes = _learned(message)
    if entry.role == "assistant":
        changes |= _answer(entry, message)
    elif not entry.replaces(message.text) and (
        entry.role != "user" or not same_words(entry.text, message.text)
    ):
        changes |= {"content": without_media(_given(message.content)), "replaced_hash": None}
    changed = {name: value for name, value in changes.items() if getattr(entry, name) != value}
    return msgspec.structs.replace(entry, **changed) if changed else entry


def _as_held(entry: Entry, message: Message) -> bool:
    """Whether the window shows just what is held: most lines of most windows, told at a glance."""
    if entry.content != message.content or entry.pending or entry.broken or message.tool_calls:
        return False
    return (
        (message.turn_id == entry.engine_turn or message.turn_id in _UNGIVEN)
        and (message.timestamp == entry.timestamp or message.timestamp in _UNGIVEN)
        and (message.name == entry.name or message.name in _UNGIVEN)
        and (not message.metadata or _told_as_held(entry, message.metadata))
    )


def _told_as_held(entry: Entry, told: dict[str, Any]) -> bool:
    return (
        told.get("source") in (entry.source, None)
        and told.get("user") in (entry.user, None)
        and (told.get("interrupted") is not True or _cut_as_held(entry, told))
    )


def _cut_as_held(entry: Entry, told: dict[str, Any]) -> bool:
    timestamp, original = told.get("interrupt_timestamp"), told.get("original")
    return entry.interrupted and timestamp == entry.interrupt_timestamp and original == entry.original


def _learned(message: Message) -> dict[str, Any]:
    """What the engine tells beside the words, and what it told before where it tells it no more."""
    told = {
        "engine_turn": turn_id_of(message),
        "timestamp": _given(message.timestamp),
        "source": message.source,
        "user": message.user,
        "name": _given(message.name),
    }
    return {name: value for name, value in told.items() if value is not None}


def _answer(entry: Entry, message: Message) -> dict[str, Any]:
    confirmed: dict[str, Any] = {"pending": False, "broken": False}
    if message.tool_calls:
        confirmed["tool_calls"] = message.tool_calls
        if not message.text.strip():
            return confirmed
    if (
        entry.replaced_hash is not None
    ):  # what was edited is what was heard, however much of the former words was
        return confirmed
    return confirmed | (_cut_by_engine(message, entry.generated) or _cut_by_comparison(entry, message))


def _cut_by_engine(message: Message, generated: str) -> dict[str, Any]:
    """How much was heard, where the engine says so."""
    if not message.interrupted:
        return {}
    longer = generated if continues(generated, message.text) else None
    return {
        "content": _given(message.content),
        "interrupted": True,
        "interrupt_timestamp": _number((message.metadata or {}).get("interrupt_timestamp")),
        "original": message.original or longer,
    }


def _cut_by_comparison(entry: Entry, message: Message) -> dict[str, Any]:
    """How much was heard, told from how much of what was generated is replayed."""
    text, generated = message.text, entry.generated
    if same_words(text, entry.text) or reordered(text, entry.text):
        return {}
    if generated != entry.text and (same_words(text, generated) or reordered(text, generated)):
        return {"content": generated, **_WHOLE}
    fewer = len(text.split()) < len(generated.split())
    cut = continues(generated, text) or (fewer and not ends_alike(text, generated))
    marks = {"interrupted": True, "original": generated} if cut else _WHOLE
    return {"content": _given(without_ellipsis(message, generated).content), **marks}


def without_ellipsis(message: Message, generated: str) -> Message:
    """A cut answer without the dots that some engines append; dots that were generated stay."""
    text = message.content
    if not isinstance(text, str) or not text.endswith(_DOTS) or generated.startswith(text):
        return message
    words = text.rstrip(_DOTTED)
    if not continues(generated, words):
        return message
    heard = (
        words if generated.startswith(words) else generated[: offset_of_letters(generated, len(bare(words)))]
    )
    return msgspec.structs.replace(message, content=heard)


def _number(value: Any) -> int | float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) <= LARGEST else None


def _given(value: Any) -> Any:
    return None if value is UNSET else value
