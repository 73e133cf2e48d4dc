"""A conversation line by line, as the user heard it."""

import hmac
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from filters.letters import unheard
from filters.message import epoch_seconds
from proxy.memory.compaction import mark_stale
from proxy.memory.session import Entry, Segment, Session
from proxy.memory.wording import text_hash


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One message. ``unheard`` was generated and not heard.

    Times are in seconds since 1970: when it was said, first recorded, and interrupted.

    ``position`` counts from the conversation's beginning; ``begins_call`` where the voice platform began to
    count its turns anew; ``in_window`` while turns read it; ``summary`` is the index of the summary that
    covers it, ``None`` where none does.
    """

    position: int
    role: str
    speaker: str | None
    source: str | None
    at: float
    recorded: float
    cut_at: float | None
    turn: int
    text: str
    unheard: str
    interrupted: bool
    pending: bool
    broken: bool
    calls: Sequence[str]
    result_of: str | None
    begins_call: bool
    in_window: bool
    editable: bool
    summary: int | None

    @property
    def fingerprint(self) -> str:
        """Tells this wording from any other."""
        return sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()


def lines_of(
    cold: Sequence[Entry], hot: Iterable[Entry], start: int, summaries: Sequence[Segment] = ()
) -> Sequence[Line]:
    """The lines of entries, the first of them at ``start``."""
    lines: list[Line] = []
    call = cold[0].call if cold else None
    for entry in (*cold, *hot):
        in_window = len(lines) >= len(cold)
        unheard_words = ""
        if entry.original is not None and entry.role == "assistant":
            unheard_words = unheard(entry.text, entry.original) if entry.text.strip() else entry.original
        line = Line(
            position=start + len(lines),
            role=entry.role,
            speaker=entry.speaker or entry.name,
            source=entry.source,
            at=entry.at,
            recorded=entry.recorded_at,
            cut_at=epoch_seconds(entry.interrupt_timestamp),
            turn=turn_number(entry),
            text=entry.text,
            unheard=unheard_words,
            interrupted=entry.interrupted,
            pending=entry.pending,
            broken=entry.broken,
            calls=[_call_text(each) for each in entry.tool_calls or ()],
            result_of=entry.tool_call_id,
            begins_call=call is not None and entry.call != call,
            in_window=in_window,
            summary=next((i for i, each in enumerate(summaries) if entry.turn_ref <= each.end), None),
            editable=in_window and isinstance(entry.content, str) and entry.role in {"user", "assistant"},
        )
        lines.append(line)
        call = entry.call
    return lines


def turn_number(entry: Entry) -> int:
    """The number of an entry's turn, as the voice platform counts where it does."""
    return entry.turn if entry.engine_turn is None else entry.engine_turn


def is_unchanged(line: Line, fingerprint: str) -> bool:
    """Whether a line has the wording that a page showed."""
    return hmac.compare_digest(line.fingerprint.encode(), fingerprint.encode())


def reworded(session: Session, position: int, text: str) -> Session:
    """The session with other words at one position, all of them heard; summaries that cover it become stale.

    A hash of the old words stays, by which an engine's replay of them is recognised.
    """
    index, words = position - session.cold_count, as_typed(text)
    entries = list(session.entries)
    entry = entries[index]
    if words == as_typed(entry.text):
        return session
    entries[index] = msgspec.structs.replace(
        entry,
        content=words,
        original=None,
        interrupted=False,
        interrupt_timestamp=None,
        replaced_hash=entry.replaced_hash or text_hash(entry.text),
    )
    return mark_stale(session, msgspec.structs.replace(session, entries=tuple(entries)))


def as_typed(text: str) -> str:
    """Text without the line breaks that a form makes of its own."""
    return text.replace("\r\n", "\n")


def _call_text(call: Mapping[str, Any]) -> str:
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    return f"{function.get('name', '?')}({function.get('arguments', '')})"
