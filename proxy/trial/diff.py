"""What differs between two conversations, message by message and word by word."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Literal

import msgspec

Written = Mapping[str, Any]
Piece = tuple[Literal["same", "removed", "added"], str]
_WORD = re.compile(r"\w+|\s+|[^\w\s]")
_MOST_WORDS = 4000  # comparing takes the square of it
_ALIKE = 0.4


class Edit(msgspec.Struct, frozen=True):
    """One step from the one conversation to the other; ``before`` and ``after`` are positions."""

    kind: Literal["same", "removed", "added", "changed"]
    before: int
    after: int
    count: int = 1


def edits(before: Sequence[Written], after: Sequence[Written]) -> Iterator[Edit]:
    """The way from ``before`` to ``after``, in order; together its steps cover both."""
    matcher = SequenceMatcher(None, _keys(before), _keys(after), autojunk=False)
    for tag, start, end, other, other_end in matcher.get_opcodes():
        if tag == "equal":
            yield Edit("same", start, other, end - start)
        else:
            yield from _replaced(before, after, range(start, end), range(other, other_end))


def _keys(messages: Sequence[Written]) -> list[bytes]:
    return [msgspec.json.encode(message, order="sorted") for message in messages]


def _replaced(before: Sequence[Written], after: Sequence[Written], old: range, new: range) -> Iterator[Edit]:
    """Messages that are alike count as one that changed; pairs never cross."""
    place = new.start
    for i in old:
        pair = next((j for j in range(place, new.stop) if _alike(before[i], after[j])), None)
        if pair is None:
            yield Edit("removed", i, place)
            continue
        yield from (Edit("added", i, j) for j in range(place, pair))
        yield Edit("changed", i, pair)
        place = pair + 1
    yield from (Edit("added", old.stop, j) for j in range(place, new.stop))


def _alike(before: Written, after: Written) -> bool:
    if before.get("role") != after.get("role"):
        return False
    one, other = value_text(before.get("content"))[1:-1], value_text(after.get("content"))[1:-1]
    if one in other or other in one:
        return True
    matcher = SequenceMatcher(None, one[:_MOST_WORDS], other[:_MOST_WORDS], autojunk=False)
    return matcher.real_quick_ratio() > _ALIKE and matcher.quick_ratio() > _ALIKE


def pieces(before: str, after: str, most: int = _MOST_WORDS) -> Sequence[Piece] | None:
    """The way from one text to the other, word by word; ``None`` where one has more than ``most`` words."""
    one, other = _WORD.findall(before), _WORD.findall(after)
    if max(len(one), len(other)) > most:
        return None
    found: list[Piece] = []
    for tag, a, b, c, d in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        gone, come = "".join(one[a:b]), "".join(other[c:d])
        steps: list[Piece] = [("same", gone)] if tag == "equal" else [("removed", gone), ("added", come)]
        found += [step for step in steps if step[1]]
    return found


def value_text(value: object) -> str:
    """A value as JSON, text in its own letters; empty for ``UNSET``."""
    if value is msgspec.UNSET:
        return ""
    return (
        json.dumps(value, ensure_ascii=False)
        if isinstance(value, str)
        else msgspec.json.encode(value).decode()
    )
