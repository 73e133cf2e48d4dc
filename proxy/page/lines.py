"""A conversation line by line, as the caller heard it."""

import hmac
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from filters.letters import unheard
from proxy.memory.compaction import mark_stale
from proxy.memory.session import Entry, Segment, Session
from proxy.memory.wording import text_hash


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One message. ``lost`` is what was generated and not heard; ``at`` is in seconds since 1970.

    ``position`` counts from the conversation's beginning; ``begins_life`` where the engine began to count
    its turns anew; ``held`` while it is in the window that a turn reads; ``summary`` is the place of the
    summary that stands for its turn, ``None`` where none does.
    """

    position: int
    role: str
    speaker: str | None
    source: str | None
    at: float
    turn: int
    text: str
    lost: str
    interrupted: bool
    pending: bool
    broken: bool
    calls: Sequence[str]
    result_of: str | None
    begins_life: bool
    held: bool
    editable: bool
    summary: int | None

    @property
    def print(self) -> str:
        """What tells this wording from any other."""
        return sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()


def lines_of(
    cold: Sequence[Entry], hot: Iterable[Entry], start: int, summaries: Sequence[Segment] = ()
) -> Sequence[Line]:
    """Entries in their order, the first of them at ``start``."""
    shown: list[Line] = []
    life = cold[0].call if cold else None
    for entry in (*cold, *hot):
        begins = life is not None and entry.call != life
        line = _line(entry, start + len(shown), begins_life=begins, held=len(shown) >= len(cold))
        covering = next((i for i, each in enumerate(summaries) if entry.turn_ref <= each.end), None)
        shown.append(msgspec.structs.replace(line, summary=covering))
        life = entry.call
    return shown


def is_as_shown(line: Line, shown: str) -> bool:
    """Whether a line has the wording that somebody saw."""
    return hmac.compare_digest(line.print.encode(), shown.encode())


def reworded(session: Session, position: int, text: str) -> Session:
    """The session with other words at one position, all of them heard; a summary of the old ones is stale.

    The old ones are known again where an engine replays them, but not kept.
    """
    place, words = position - session.cold_count, as_typed(text)
    entries = list(session.entries)
    entry = entries[place]
    if words == as_typed(entry.text):
        return session
    entries[place] = msgspec.structs.replace(
        entry,
        content=words,
        original=None,
        interrupted=False,
        interrupt_timestamp=None,
        replaced_hash=entry.replaced_hash or text_hash(entry.text),
    )
    return mark_stale(session, msgspec.structs.replace(session, entries=tuple(entries)))


def as_typed(text: str) -> str:
    """Words without what a form makes of their line breaks."""
    return text.replace("\r\n", "\n")


def _line(entry: Entry, position: int, *, begins_life: bool, held: bool) -> Line:
    return Line(
        position=position,
        role=entry.role,
        speaker=entry.speaker or entry.name,
        source=entry.source,
        at=entry.at,
        turn=entry.turn if entry.engine_turn is None else entry.engine_turn,
        text=entry.text,
        lost=_lost(entry),
        interrupted=entry.interrupted,
        pending=entry.pending,
        broken=entry.broken,
        calls=[_call(call) for call in entry.tool_calls or ()],
        result_of=entry.tool_call_id,
        begins_life=begins_life,
        held=held,
        summary=None,
        editable=held and isinstance(entry.content, str) and entry.role in {"user", "assistant"},
    )


def _lost(entry: Entry) -> str:
    if entry.original is None or entry.role != "assistant":
        return ""
    return unheard(entry.text, entry.original) if entry.text.strip() else entry.original


def _call(call: dict[str, Any]) -> str:
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    return f"{function.get('name', '?')}({function.get('arguments', '')})"
