"""Answers that an engine replays in pieces, as several messages in a row: memory holds each once."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

import msgspec

from filters.letters import bare
from filters.message import Message
from proxy.memory.align.anchors import AGAIN
from proxy.memory.align.line import turn_id_of
from proxy.memory.session import Entry
from proxy.memory.wording import offset_of_letters

_BETWEEN: Final = " \n\t.,;:!?"


class Whole(NamedTuple):
    """An answer, and the messages that an engine makes of it."""

    said: Message
    pieces: Sequence[Message]

    def last(self, original: str) -> tuple[Message, str]:
        """The last piece, and what of all that was generated stands from there on."""
        before = sum(len(bare(piece.text)) for piece in self.pieces[:-1])
        return self.pieces[-1], original[offset_of_letters(original, before) :].lstrip(_BETWEEN)


def in_pieces(held: Sequence[Entry], spoken: Sequence[Message]) -> list[int]:
    """How many lines belong together, for each line of a window that is no further piece of the one before.

    Pieces are of one answer where their letters are the beginning of a held one's. Nothing where all lines
    stand by themselves.
    """
    roles = [message.role for message in spoken]
    if not any(one == other == "assistant" for one, other in pairwise(roles)):
        return []
    if not any(_is_answer(one) and _is_answer(other) for one, other in pairwise(spoken)):
        return []
    generated = sorted(
        bare(entry.generated) for entry in held if entry.role == "assistant" and not entry.tool_calls
    )
    counts, position = [], 0
    while position < len(spoken):
        counts.append(_count(generated, spoken, position))
        position += counts[-1]
    return counts if max(counts) > 1 else []


def joined(spoken: Sequence[Message], counts: Sequence[int]) -> list[Message]:
    """The lines with the pieces of each answer as one."""
    return [_joined(spoken[start : start + count]) for start, count in _spans(counts)]


def spread(places: Sequence[int], counts: Sequence[int]) -> list[int]:
    """The places of the pieces, where those of the joined lines are known: the first has it alone."""
    spans = zip(places, counts, strict=True)
    return [place if not i or place < 0 else AGAIN for place, count in spans for i in range(count)]


def wholes(spoken: Sequence[Message], places: Sequence[int], counts: Sequence[int]) -> dict[int, Whole]:
    """By the position of its first piece, each answer that is held as one."""
    found = {}
    for place, (start, count) in zip(places, _spans(counts), strict=True):
        if count > 1 and place >= 0:
            pieces = spoken[start : start + count]
            found[start] = Whole(_joined(pieces), pieces)
    return found


def _spans(counts: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip(accumulate(counts, initial=0), counts)  # noqa: B905 - the sum of all begins nothing


def _is_answer(message: Message) -> bool:
    spoken = message.role == "assistant" and not message.tool_calls
    return spoken and turn_id_of(message) is None and not message.interrupted


def _count(generated: Sequence[str], spoken: Sequence[Message], first: int) -> int:
    """How many lines from the ``first`` on are one of the answers, which are in their order."""
    if not _is_answer(spoken[first]):
        return 1
    said, count = bare(spoken[first].text), 1
    while first + count < len(spoken):
        line = spoken[first + count]
        more = bare(line.text) if _is_answer(line) else ""
        if not more or not _begins(generated, said + more):
            break
        said, count = said + more, count + 1
    return count if said else 1


def _begins(generated: Sequence[str], letters: str) -> bool:
    """Whether an answer begins with these letters: the first that comes no earlier in their order does."""
    at = bisect_left(generated, letters)
    return at < len(generated) and generated[at].startswith(letters)


def _joined(pieces: Sequence[Message]) -> Message:
    if len(pieces) == 1:
        return pieces[0]
    whole: Any = " ".join(piece.text.strip() for piece in pieces)
    return msgspec.structs.replace(pieces[0], content=whole)
