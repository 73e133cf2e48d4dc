"""What a line of Markdown begins with: heading, item, quotation, fence, table row, rule."""

import re
from collections.abc import Callable
from typing import Literal

import msgspec

from filters.text.rewriter import Arriving

BLANKS = re.compile(r"[ \t]{0,60}")
_ENDS = frozenset({"", " ", "\t", "\n"})
_HASHES = re.compile("#{0,7}")
_TICKS = re.compile("`{0,10}")
_TILDES = re.compile("~{0,10}")
_LANGUAGE = re.compile(r"[^`~\n]{0,40}")
_DASHES = re.compile("-{0,60}")
_CELL = re.compile(r"[^|\n]{0,60}")


class BlockOpening(msgspec.Struct, frozen=True):
    """A mark at the beginning of a line, and where it is over.

    ``mark`` is what closes a fence, or the characters that a rule may hold.
    """

    end: int
    kind: Literal["marker", "heading", "fence", "row", "rule"] = "marker"
    mark: str = ""


def opening(arriving: Arriving, i: int, *, within: bool) -> BlockOpening | None:
    """The mark at ``i``, if any; ``within`` tells that another stands before it. Raises Undecided."""
    first = arriving.at(i)
    if first == "[":
        return _box(arriving, i) if within else None
    find = _OPENINGS.get(first)
    return find(arriving, i) if find else None


def _box(arriving: Arriving, i: int) -> BlockOpening | None:
    is_box = arriving.at(i + 1) in {" ", "x", "X"} and arriving.at(i + 2) == "]"
    return BlockOpening(i + 3) if is_box and arriving.at(i + 3) in _ENDS else None


def _heading(arriving: Arriving, i: int) -> BlockOpening | None:
    end = arriving.past(_HASHES, i)
    return BlockOpening(end, "heading") if end - i < 7 and arriving.at(end) in _ENDS else None  # noqa: PLR2004


def _quotation(arriving: Arriving, i: int) -> BlockOpening | None:
    after = arriving.at(i + 1)
    return None if after == "=" or after.isdigit() else BlockOpening(i + 1)


def _item(arriving: Arriving, i: int) -> BlockOpening | None:
    return BlockOpening(i + 1) if arriving.at(i + 1) in _ENDS else None


def _dashes(arriving: Arriving, i: int) -> BlockOpening | None:
    return _item(arriving, i) or (BlockOpening(i + 3, "rule", "-|:+ \t") if _is_triple(arriving, i) else None)


def _equals(arriving: Arriving, i: int) -> BlockOpening | None:
    return BlockOpening(i + 3, "rule", "= \t") if _is_triple(arriving, i) else None


def _stars(arriving: Arriving, i: int) -> BlockOpening | None:
    return _item(arriving, i) or _underscores(arriving, i)


def _underscores(arriving: Arriving, i: int) -> BlockOpening | None:
    mark = arriving.at(i)
    if _is_triple(arriving, i) and arriving.at(i + 3) in _ENDS | {mark}:
        return BlockOpening(i + 3, "rule", f"{mark} \t")
    return None


def _fence(arriving: Arriving, i: int) -> BlockOpening | None:
    if not _is_triple(arriving, i):
        return None
    mark = arriving.at(i)
    named = arriving.past(_TICKS if mark == "`" else _TILDES, i)
    end = arriving.past(_LANGUAGE, named)
    after = arriving.at(end)
    is_last = not after and len(arriving.text[named:end].split()) < 2  # noqa: PLR2004
    return BlockOpening(end + len(after), "fence", mark) if after == "\n" or is_last else None


def _row(arriving: Arriving, i: int) -> BlockOpening | None:
    if _is_delimiter(arriving, i + 1):
        return BlockOpening(i + 1, "rule", "|-:+ \t")
    if arriving.at(i + 1) in {" ", "\t"}:
        return BlockOpening(arriving.past(BLANKS, i + 1), "row")
    end = arriving.past(_CELL, i + 1)
    is_row = end > i + 1 and arriving.at(end) == "|" and arriving.at(end + 1) not in _ENDS
    return BlockOpening(i + 1, "row") if is_row else None


def _is_delimiter(arriving: Arriving, i: int) -> bool:
    i = arriving.past(BLANKS, i)
    i += arriving.at(i) == ":"
    dashes = arriving.past(_DASHES, i)
    end = dashes + (arriving.at(dashes) == ":")
    return dashes > i and arriving.at(arriving.past(BLANKS, end)) in {"|", "\n", ""}


def _is_triple(arriving: Arriving, i: int) -> bool:
    return arriving.at(i + 1) == arriving.at(i) and arriving.at(i + 2) == arriving.at(i)


_OPENINGS: dict[str, Callable[[Arriving, int], BlockOpening | None]] = {
    "#": _heading,
    ">": _quotation,
    "-": _dashes,
    "+": _item,
    "*": _stars,
    "_": _underscores,
    "=": _equals,
    "`": _fence,
    "~": _fence,
    "|": _row,
    **dict.fromkeys("•◦‣▪●○", _item),
}
