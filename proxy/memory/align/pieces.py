"""Answers that an engine shows in pieces, as several messages in a row: a session has each once."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from filters.letters import bare
from filters.message import Message, turn_id_of
from filters.tool_groups import call_id
from proxy.memory.session import Entry
from proxy.memory.wording import offset_of_letters

_BETWEEN: Final = " \n\t.,;:!?"
_role: Final = attrgetter("role")


class SplitAnswer(NamedTuple):
    """An answer, and the messages that an engine makes of it."""

    whole: Message
    pieces: Sequence[Message]

    @property
    def last(self) -> int:
        """Which piece has the last words: behind it there may be the tool calls alone."""
        return len(self.pieces) - 1 - bool(self.pieces[-1].tool_calls)

    def last_of(self, original: str) -> str:
        """What was generated, from the beginning of the last piece on."""
        before = sum(len(bare(piece.text)) for piece in self.pieces[: self.last])
        return original[offset_of_letters(original, before) :].lstrip(_BETWEEN)


def piece_counts(entries: Sequence[Entry], lines: Sequence[Message]) -> list[int]:
    """How many lines make up each answer or other message; nothing where all stand by themselves.

    Lines are pieces of one answer where their letters are the beginning of a recorded one's. So are words,
    and the tool calls of the recorded answer that begins with these words.
    """
    if not any(
        _is_answer(one) and (_is_answer(other) or _is_wordless(other)) for one, other in pairwise(lines)
    ):
        return []
    calling = (entry for entry in entries if entry.tool_calls)
    words = {tuple(map(call_id, entry.tool_calls or ())): bare(entry.generated) for entry in calling}
    answers = (entry for entry in entries if entry.role == "assistant" and not entry.tool_calls)
    generated = sorted(bare(entry.generated) for entry in answers)
    counts, first = [], 0
    while first < len(lines):
        letters, count = bare(lines[first].text) if _is_answer(lines[first]) else "", 1
        while letters and first + count < len(lines):
            line = lines[first + count]
            more = bare(line.text) if _is_answer(line) else ""
            at = bisect_left(generated, letters + more)
            if not more or at == len(generated) or not generated[at].startswith(letters + more):
                break
            letters, count = letters + more, count + 1
        if letters and first + count < len(lines) and _is_wordless(line := lines[first + count]):
            calls = tuple(map(call_id, line.tool_calls or ()))
            count += words.get(calls, "").startswith(letters)
        counts.append(count)
        first += count
    return counts if max(counts) > 1 else []


def join_pieces(lines: Sequence[Message], counts: Sequence[int]) -> list[Message]:
    """The lines with the pieces of each answer as one."""
    return [_joined(lines[start : start + count]) for start, count in _spans(counts)]


def spread_places(places: Sequence[int], counts: Sequence[int], other: int) -> list[int]:
    """The places of the pieces: the first has that of the joined line, each further one ``other``."""
    spans = zip(places, counts, strict=True)
    return [place if not i or place < 0 else other for place, count in spans for i in range(count)]


def split_answers(
    lines: Sequence[Message], places: Sequence[int], counts: Sequence[int]
) -> dict[int, SplitAnswer]:
    """The recorded answers that are shown in pieces, by the index of the first piece."""
    return {
        start: SplitAnswer(_joined(lines[start : start + count]), lines[start : start + count])
        for place, (start, count) in zip(places, _spans(counts), strict=True)
        if count > 1 and place >= 0
    }


def _spans(counts: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip(accumulate(counts, initial=0), counts)  # noqa: B905 - the sum of all begins nothing


def _is_answer(message: Message) -> bool:
    spoken = message.role == "assistant" and not message.tool_calls
    return spoken and turn_id_of(message) is None and not message.interrupted


def _is_wordless(message: Message) -> bool:
    """Whether a message calls tools and says nothing."""
    return message.role == "assistant" and bool(message.tool_calls) and not message.text.strip()


def _joined(pieces: Sequence[Message]) -> Message:
    if len(pieces) == 1:
        return pieces[0]
    whole: Any = " ".join(piece.text.strip() for piece in pieces if not piece.tool_calls)
    return msgspec.structs.replace(pieces[0], content=whole, tool_calls=pieces[-1].tool_calls)
