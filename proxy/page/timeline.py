"""A call as lines that the user heard, and as a time line of speech and of waiting for the model.

The proxy has no sound: the duration of speech is estimated from its length. A caller's words end when their
request arrives, and an answer begins with its first token; where the turn is not kept, the voice platform's
times are used.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from math import ceil
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple
from unicodedata import east_asian_width

import msgspec

from filters.letters import unheard
from filters.message import epoch_seconds
from proxy.memory.compaction import mark_stale
from proxy.memory.session import Entry, Segment, Session
from proxy.memory.wording import text_hash
from proxy.page.renderer import lasting, took

SECOND: Final = 40.0
"""The width of a second, in the drawing's units."""
_LETTERS_A_SECOND: Final = 15.0
_WIDE_LETTERS_A_SECOND: Final = 4.5
_SHORTEST: Final = 0.4
# In seconds: a longer silence is drawn with this length, and labelled with its own.
_LONGEST_SILENCE: Final = 4.0
_NAMED_SILENCE: Final = 2.0
_LONGEST_SPEECH: Final = 60.0
_LONGEST_TEXT: Final = ceil(_LONGEST_SPEECH * _LETTERS_A_SECOND)
SAME_TURN: Final = 0.25
"""In seconds: a line and its turn are recorded by the same clock, only milliseconds apart."""
_CLOCKS_AGREE: Final = 10.0
_TICK: Final = 5.0
_MARGIN: Final = 12.0
_LETTER: Final = 6.6
"""The average width of a letter in a bar, and of a digit in a label."""


class TranscriptLine(msgspec.Struct, frozen=True, kw_only=True):
    """One message; ``unheard`` is the part of an answer that the caller did not hear.

    Times are in seconds since 1970: when it was said, first recorded, and interrupted.

    ``position`` counts from the conversation's beginning. ``begins_call`` is whether it is the first message
    of a call after another one, and ``in_window`` whether turns still read it. ``summary`` is the index of
    the summary that covers it, or ``None``.
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
        """A hash of the text."""
        return sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()


def lines_of(
    cold: Sequence[Entry], hot: Iterable[Entry], start: int, summaries: Sequence[Segment] = ()
) -> Sequence[TranscriptLine]:
    """The lines of entries; the first has the position ``start``."""
    lines: list[TranscriptLine] = []
    call = cold[0].call if cold else None
    for entry in (*cold, *hot):
        in_window = len(lines) >= len(cold)
        unheard_words = ""
        if entry.original is not None and entry.role == "assistant":
            unheard_words = unheard(entry.text, entry.original) if entry.text.strip() else entry.original
        line = TranscriptLine(
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
    """The voice platform's turn id of an entry, else our own turn number."""
    return entry.turn if entry.turn_id is None else entry.turn_id


def reworded(session: Session, position: int, text: str) -> Session:
    """Replaces the text at one position, as heard to its end; summaries that cover it become stale.

    A hash of the old text stays, by which a replay of it is recognised.
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
    """The text with LF line breaks, in place of the CR LF of forms."""
    return text.replace("\r\n", "\n")


def _call_text(call: Mapping[str, Any]) -> str:
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    return f"{function.get('name', '?')}({function.get('arguments', '')})"


class TurnMark(msgspec.Struct, frozen=True, kw_only=True):
    """A kept turn. ``at`` and ``written_at`` are in seconds since 1970; other times are durations."""

    id: str
    at: float
    state: str
    first_token: float | None
    overhead: float
    written_at: float | None


class SpeechBar(msgspec.Struct, frozen=True, kw_only=True):
    """A bar on a track, from ``x`` on; ``unheard`` is the width of the part that was not heard."""

    track: Literal["caller", "agent", "tool"]
    x: float
    width: float
    unheard: float
    position: int
    text: str
    """The beginning of the words, as far as it fits."""
    title: str
    interrupted: bool


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """The wait from a request's arrival to its first token; ``own`` is the width of Turnkeeper's part."""

    x: float
    width: float
    own: float
    label: str
    title: str


class Mark(msgspec.Struct, frozen=True):
    """A text at a place of the time line."""

    x: float
    text: str


class CallTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """The drawing of one call, ``width`` wide."""

    width: float
    bars: Sequence[SpeechBar]
    waits: Sequence[Wait]
    silences: Sequence[Mark]
    writes: Sequence[Mark]
    ticks: Sequence[Mark]


class _Span(NamedTuple):
    """The time of one line; ``rest`` is how many seconds the unheard part would have taken."""

    start: float
    end: float
    rest: float = 0.0


def turns_of_lines(lines: Sequence[TranscriptLine], marks: Iterable[TurnMark]) -> dict[int, TurnMark]:
    """By position, the turn of each line that is the turn's newest words or its answer."""
    newest: dict[tuple[str, str], tuple[int, TurnMark]] = {}
    by_time = list(marks)
    for line in lines:
        mark = min(by_time, key=lambda each: abs(line.recorded - each.at), default=None)
        if mark and abs(line.recorded - mark.at) < SAME_TURN and line.role in {"user", "assistant"}:
            newest[mark.id, line.role] = line.position, mark
    return dict(newest.values())


def call_timeline(lines: Sequence[TranscriptLine], turns: Mapping[int, TurnMark]) -> CallTimeline | None:
    """The time line of the newest call; ``None`` where it has no speech."""
    first = max((i for i, line in enumerate(lines) if line.begins_call), default=0)
    spoken = _by_one_clock([line for line in lines[first:] if line.role in {"user", "assistant", "tool"}])
    if not spoken:
        return None
    spans = _spans(spoken, turns)
    answers = [mark for line in spoken if line.role == "assistant" and (mark := turns.get(line.position))]
    waits = [(mark, _Span(mark.at, mark.at + mark.first_token)) for mark in answers if mark.first_token]
    scale = _TimeScale([*spans, *(span for _, span in waits)])
    x = scale.place
    drawn = sorted(((mark, x(span.start), x(span.end)) for mark, span in waits), key=itemgetter(1))
    # A label is left out where there is no room for it before the next one.
    ends = [*(start for _, start, _ in drawn[1:]), scale.width]
    labelled = []
    for (mark, start, end), next_one in zip(drawn, ends, strict=False):
        label, width = took(mark.first_token), round(end - start, 1)
        wait = Wait(
            x=start,
            width=width,
            own=round(max(1.0, mark.overhead * SECOND), 1),
            label=label if start + width + _LETTER * (len(label) + 1) <= next_one else "",
            title=f"First token after {label}; Turnkeeper added {took(mark.overhead)}",
        )
        labelled.append(wait)
    return CallTimeline(
        width=scale.width,
        bars=[_bar(line, span, scale) for line, span in zip(spoken, spans, strict=True)],
        waits=labelled,
        silences=[
            Mark(round((x(gap.start) + x(gap.end)) / 2, 1), lasting(gap.end - gap.start))
            for gap in scale.gaps
            if gap.end - gap.start >= _NAMED_SILENCE
        ],
        writes=[
            Mark(x(mark.written_at), "Written to memory") for mark in answers if mark.written_at is not None
        ],
        ticks=scale.ticks(),
    )


def _by_one_clock(lines: Sequence[TranscriptLine]) -> Sequence[TranscriptLine]:
    """The lines with their times by the proxy's clock, if the voice platform's clock differs much.

    The line with the shortest time between speech and recording shows the difference.
    """
    platform = [line for line in lines if line.at != line.recorded]
    ahead = min((line.recorded - line.at for line in platform), default=0.0)
    if abs(ahead) < _CLOCKS_AGREE:
        return lines
    return [
        msgspec.structs.replace(
            line,
            at=line.at if line.at == line.recorded else line.at + ahead,
            cut_at=line.cut_at and line.cut_at + ahead,
        )
        for line in lines
    ]


def _fitting(words: str, width: float) -> str:
    """The beginning of the words that fits into a bar, with an ellipsis if it is not all."""
    room = width - 2 * _LETTER
    for i, letter in enumerate(words):
        room -= _LETTER * (2 if east_asian_width(letter) in {"W", "F"} else 1)
        if room < 0:
            return words[: i - 1].rstrip() + "…" if i > 1 else ""
    return words


def _bar(line: TranscriptLine, span: _Span, scale: "_TimeScale") -> SpeechBar:
    words = line.text or "; ".join(line.calls) or line.unheard
    is_tool = line.role != "user" and (line.role == "tool" or not (line.text or line.unheard))
    start, end = scale.place(span.start), scale.place(span.end)
    return SpeechBar(
        track="tool" if is_tool else "caller" if line.role == "user" else "agent",
        x=start,
        width=round(end - start, 1),
        unheard=round(scale.place(span.end + span.rest) - end, 1),
        position=line.position,
        text=_fitting(words, end - start),
        title=f"{line.role}: {words}" + (f" (not heard: {line.unheard})" if line.unheard else ""),
        interrupted=line.interrupted,
    )


def _spans(lines: Sequence[TranscriptLine], turns: Mapping[int, TurnMark]) -> Sequence[_Span]:
    """The time of each line: none before the one above it, and no two at once on one track."""
    spans: list[_Span] = []
    newest: dict[bool, int] = {}  # by whether it is the caller's
    for i, line in enumerate(lines):
        mark, seconds, is_caller = turns.get(line.position), _seconds(line.text), line.role == "user"
        begun = spans[-1].start if spans else 0.0
        free = spans[newest[True]].end if True in newest else 0.0
        if is_caller:
            end = mark.at if mark else line.at
            start = max(end - seconds, free, begun)
            span = _Span(start, max(end, start + _SHORTEST))
            if i and lines[i - 1].interrupted:
                spans[-1] = _cut(spans[-1], lines[i - 1].cut_at or start)
        else:
            is_streamed = mark is not None and mark.first_token is not None and line.role == "assistant"
            start = mark.at + (mark.first_token or 0.0) if mark and is_streamed else line.at
            start = max(start, free, begun)
            span = _Span(start, start + seconds, _seconds(line.unheard) if line.unheard else 0.0)
            if False in newest:
                spans[newest[False]] = _cut(spans[newest[False]], start)
        newest[is_caller] = i
        spans.append(span)
    return spans


def _cut(span: _Span, at: float) -> _Span:
    """The span, cut at a time; a minimum remains, since the clock may be wrong."""
    return span._replace(end=min(span.end, max(at, span.start + _SHORTEST)))


def _seconds(text: str) -> float:
    """The estimated duration of words in seconds; only the beginning of a long text is measured."""
    text = text[:_LONGEST_TEXT]
    wide = sum(east_asian_width(letter) in {"W", "F"} for letter in text)
    seconds = wide / _WIDE_LETTERS_A_SECOND + (len(text) - wide) / _LETTERS_A_SECOND
    return min(_LONGEST_SPEECH, max(_SHORTEST, seconds))


class _TimeScale:
    """Converts seconds since 1970 to places in the drawing; long silences are shortened."""

    def __init__(self, spans: Sequence[_Span]) -> None:
        ordered = sorted((span.start, span.end + span.rest) for span in spans)
        self.start, end = ordered[0][0], 0.0
        self.gaps: list[_Span] = []
        for start, stop in ordered:
            if end and start > end:
                self.gaps.append(_Span(end, start))
            end = max(end, stop)
        self.end = end
        self.width = self.place(end) + _MARGIN

    def place(self, at: float) -> float:
        """The place of a time."""
        cut = sum(
            min(at, gap.end) - gap.start - min(min(at, gap.end) - gap.start, _LONGEST_SILENCE)
            for gap in self.gaps
            if gap.start < at
        )
        return round(_MARGIN + (at - self.start - cut) * SECOND, 1)

    def ticks(self) -> Sequence[Mark]:
        """A mark every few seconds, outside of shortened silences."""
        starts = [self.start, *(gap.end for gap in self.gaps)]
        ends = [*(gap.start + _LONGEST_SILENCE for gap in self.gaps), self.end]
        numbers = sorted(
            {
                number
                for start, end in zip(starts, ends, strict=True)
                for number in range(ceil((start - self.start) / _TICK), int((end - self.start) / _TICK) + 1)
            }
        )
        marks = [Mark(self.place(self.start + n * _TICK), _clock(round(n * _TICK))) for n in numbers]
        return [
            mark if mark.x + _LETTER * (len(mark.text) + 1) <= self.width else Mark(mark.x, "")
            for mark in marks
        ]


def _clock(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
