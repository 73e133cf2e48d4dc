"""The difference of two conversations, message by message and word by word."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Literal

import msgspec

MessageDict = Mapping[str, Any]
Piece = tuple[Literal["same", "removed", "added"], str]

_WORD = re.compile(r"\w+|\s+|[^\w\s]")
_MAX_WORDS = 4000  # comparing takes the square of it
_SIMILAR = 0.4


class Edit(msgspec.Struct, frozen=True):
    """One step from one conversation to the other; ``before`` and ``after`` are positions."""

    kind: Literal["same", "removed", "added", "changed"]
    before: int
    after: int
    count: int = 1


def edits(before: Sequence[MessageDict], after: Sequence[MessageDict]) -> Iterator[Edit]:
    """The steps from ``before`` to ``after``, in order; together they cover both."""
    old, new = ([msgspec.json.encode(each, order="sorted") for each in side] for side in (before, after))
    for tag, start, end, new_start, new_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            yield Edit("same", start, new_start, end - start)
            continue
        # Messages that are similar count as one that changed; pairs never cross.
        for i in range(start, end):
            pair = next((j for j in range(new_start, new_end) if _is_similar(before[i], after[j])), None)
            if pair is None:
                yield Edit("removed", i, new_start)
                continue
            yield from (Edit("added", i, j) for j in range(new_start, pair))
            yield Edit("changed", i, pair)
            new_start = pair + 1  # noqa: PLW2901
        yield from (Edit("added", end, j) for j in range(new_start, new_end))


def _is_similar(before: MessageDict, after: MessageDict) -> bool:
    if before.get("role") != after.get("role"):
        return False
    old, new = value_text(before.get("content"))[1:-1], value_text(after.get("content"))[1:-1]
    if old in new or new in old:
        return True
    matcher = SequenceMatcher(None, old[:_MAX_WORDS], new[:_MAX_WORDS], autojunk=False)
    return matcher.real_quick_ratio() > _SIMILAR and matcher.quick_ratio() > _SIMILAR


def pieces(before: str, after: str, max_words: int = _MAX_WORDS) -> Sequence[Piece] | None:
    """The steps from one text to the other, word by word; ``None`` where one has more than ``max_words``."""
    old, new = _WORD.findall(before), _WORD.findall(after)
    if max(len(old), len(new)) > max_words:
        return None
    result: list[Piece] = []
    for tag, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        removed, added = "".join(old[a:b]), "".join(new[c:d])
        same: list[Piece] = [("same", removed)]
        changed: list[Piece] = [("removed", removed), ("added", added)]
        result += [step for step in (same if tag == "equal" else changed) if step[1]]
    return result


def value_text(value: object) -> str:
    """A value as JSON, text in its own letters; empty for ``UNSET``."""
    if value is msgspec.UNSET:
        return ""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return msgspec.json.encode(value).decode()
