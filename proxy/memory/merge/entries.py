"""Adds, confirms, cuts, rewords and retracts entries according to a window."""

from typing import Any, Final

import msgspec
from msgspec import UNSET

from filters.letters import bare, offset_of_letters
from filters.message import Message, newest_user, turn_id_of
from filters.tool_groups import call_id
from proxy.memory.align.alignment import Alignment
from proxy.memory.session import Entry
from proxy.memory.speech import without_media
from proxy.memory.wording import ELLIPSES, ELLIPSIS_CHARACTERS, continues, ends_alike, reordered, same_words

_SIGNED: Final = "extra_content"  # the field with Gemini's signature of a tool call
_ABSENT: Final = (UNSET, None)
_NOT_INTERRUPTED: Final[dict[str, Any]] = {
    "interrupted": False,
    "interrupt_timestamp": None,
    "original": None,
}


def new_entry(message: Message, *, call: int, turn: int, now: float) -> Entry:
    """Returns the entry of a message that is recorded ``now``, in seconds since 1970."""
    # Skips absent marks for speed: the first window of a call may show a long history.
    content, turn_id, at = message.content, message.turn_id, message.timestamp
    name, calls, result_of = message.name, message.tool_calls, message.tool_call_id
    is_marked = bool(message.metadata or message.others)
    entry = Entry(
        role=message.role,
        turn=turn,
        call=call,
        turn_id=turn_id if isinstance(turn_id, int) else None,
        content=content if isinstance(content, str) else without_media(_value(content)),
        name=None if name is UNSET else name,
        tool_calls=calls or None,
        tool_call_id=None if result_of is UNSET else result_of,
        timestamp=None if at is UNSET else at,
        source=message.source if is_marked else None,
        user=message.user if is_marked else None,
        recorded_at=now,
    )
    if is_marked and message.interrupted:
        return msgspec.structs.replace(entry, **_cut_by_platform(message, message.text))
    return entry


def renew_entry(entry: Entry, message: Message) -> Entry:
    """Returns an entry, updated from a later window that shows what was heard."""
    if shows_as_recorded(entry, message):
        return entry
    # The fields beside the words; one that the voice platform no longer sends keeps its value.
    fields = {
        "turn_id": turn_id_of(message),
        "timestamp": _value(message.timestamp),
        "source": message.source,
        "user": message.user,
        "name": _value(message.name),
    }
    changes: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    if entry.role == "assistant":
        changes |= {"pending": False, "broken": False}
        if message.tool_calls:
            changes["tool_calls"] = with_signatures(message.tool_calls, entry)
        # Edited words count as heard, however much of the former ones was.
        is_as_generated = entry.content == message.content and not message.interrupted
        if (
            not is_as_generated
            and entry.replaced_hash is None
            and (message.text.strip() or not message.tool_calls)
        ):
            changes |= _cut_by_platform(message, entry.generated) or _cut_by_comparison(entry, message)
    elif not entry.replaces(message.text) and (
        entry.role != "user" or not same_words(entry.text, message.text)
    ):
        changes |= {"content": without_media(_value(message.content)), "replaced_hash": None}
    changed = {name: value for name, value in changes.items() if getattr(entry, name) != value}
    return msgspec.structs.replace(entry, **changed) if changed else entry


def with_signatures(calls: list[dict[str, Any]], entry: Entry) -> list[dict[str, Any]]:
    """Returns tool calls of a window, with signatures of the model that the client dropped."""
    signatures = {call_id(call): call[_SIGNED] for call in entry.tool_calls or () if call.get(_SIGNED)}
    if not signatures:
        return calls
    return [
        call
        if call.get(_SIGNED) or (name := call_id(call)) not in signatures
        else {**call, _SIGNED: signatures[name]}
        for call in calls
    ]


def without_ellipsis(message: Message, generated: str) -> Message:
    """Returns a cut answer without the ellipsis that some platforms append; a generated one stays."""
    text = message.content
    if not isinstance(text, str) or not text.endswith(ELLIPSES) or generated.startswith(text):
        return message
    words = text.rstrip(ELLIPSIS_CHARACTERS)
    if not continues(generated, words):
        return message
    end = len(words) if generated.startswith(words) else offset_of_letters(generated, len(bare(words)))
    return msgspec.structs.replace(message, content=generated[:end])


def shows_as_recorded(entry: Entry, message: Message) -> bool:
    """Whether a line equals its entry in all recorded fields; false for pending answers and tool calls."""
    if (
        entry.content != message.content
        or entry.pending
        or entry.broken
        or message.tool_calls
        or (message.turn_id != entry.turn_id and message.turn_id not in _ABSENT)
        or (message.timestamp != entry.timestamp and message.timestamp not in _ABSENT)
        or (message.name != entry.name and message.name not in _ABSENT)
    ):
        return False
    marks = message.metadata
    if not (marks or message.others):
        return True
    if (
        isinstance(marks, dict)
        and not message.others
        and marks.get("source") == entry.source
        and marks.get("user") == entry.user
        and not marks.get("interrupted")
    ):
        return True
    if message.source not in (entry.source, None) or message.user not in (entry.user, None):
        return False
    if not message.interrupted:
        return True
    return (
        entry.interrupted
        and message.interrupt_timestamp == entry.interrupt_timestamp
        and message.original == entry.original
    )


def _cut_by_platform(message: Message, generated: str) -> dict[str, Any]:
    """Returns the changed fields of an answer that the platform marks as interrupted; else none."""
    if not message.interrupted:
        return {}
    longer = generated if continues(generated, message.text) else None
    return {
        "content": _value(message.content),
        "interrupted": True,
        "interrupt_timestamp": message.interrupt_timestamp,
        "original": message.original or longer,
    }


def _cut_by_comparison(entry: Entry, message: Message) -> dict[str, Any]:
    """Returns the changed fields of an answer whose cut shows in a comparison with the generated text."""
    text, generated = message.text, entry.generated
    if same_words(text, entry.text) or reordered(text, entry.text):
        return {}
    if generated != entry.text and (same_words(text, generated) or reordered(text, generated)):
        return {"content": generated, **_NOT_INTERRUPTED}
    fewer = len(text.split()) < len(generated.split())
    is_cut = continues(generated, text) or (fewer and not ends_alike(text, generated))
    marks = {"interrupted": True, "original": generated} if is_cut else _NOT_INTERRUPTED
    return {"content": _value(without_ellipsis(message, generated).content), **marks}


def _value(field: Any) -> Any:
    return None if field is UNSET else field


def retracted(alignment: Alignment) -> set[int]:
    """Returns the places of entries that a window retracts: superseded words, and answers never heard.

    Entries before the window's start are not retracted: windows slide. A confirmed answer stays, unless its
    whole turn is retracted.
    """
    matched = set(alignment.matched)
    if not matched:
        last = alignment.superseded
        return set() if last is None else set(range(last, len(alignment.entries)))
    if matched.issuperset(range(alignment.start, alignment.end)):
        return set()
    entries = alignment.entries
    absent = [place for place in range(alignment.end) if place not in matched]
    users: set[int] = set()
    # Without turn ids, matched tool calls alone retract nothing, as another turn may have made the same ones.
    # Voice platforms may count roles separately, so the user's words have a span of their own.
    has_turn_ids = any(turn_id_of(message) is not None for message in alignment.lines)
    if has_turn_ids or not all(entries[i].tool_calls or entries[i].role == "tool" for i in matched):
        first = min((i for i in matched if entries[i].role == "user"), default=max(matched))
        users = {i for i in absent if i > first and entries[i].role == "user"}
    return users | _unheard(alignment, absent, matched, users)


def _unheard(alignment: Alignment, absent: list[int], matched: set[int], users: set[int]) -> set[int]:
    entries, question, revised = alignment.entries, alignment.question, alignment.revised
    newest = alignment.places[question] if question is not None else -1
    passed = newest if newest >= 0 else alignment.end
    turns = {entries[i].turn for i in users} - {entries[i].turn for i in matched}
    unheard = set()
    for i in absent:
        entry = entries[i]
        if entry.role == "user":
            continue
        answers_early_words = revised is not None and entry.pending and i > revised
        taken_back = 0 <= newest < i and any(user > i for user in users)
        spanned = alignment.start < i < passed and (entry.broken or alignment.shows_answers)
        answers_retracted = entry.pending and newest_user(entries[:i]) in users
        if (
            answers_early_words
            or taken_back
            or answers_retracted
            or entry.turn in turns
            or (entry.pending and spanned)
        ):
            unheard.add(i)
    return unheard
