"""Reasoning that a model writes between tags, taken out of text while it arrives."""

import re
from collections.abc import Sequence

from filters.text.rewriter import Arriving, Rewriter

_BLANKS = re.compile(r"\s{0,40}")


class Reasoning(Rewriter):
    """Takes out what stands between tags, and the blanks behind.

    Unless ``anywhere``, only what stands before the first word of the answer. With ``opened`` the answer
    begins inside, and ends there too where no tag closes.
    """

    def __init__(self, tags: Sequence[str], *, anywhere: bool, opened: bool) -> None:
        super().__init__()
        self._tags = tuple(tag.lower() for tag in tags)
        self._anywhere = anywhere
        self._inside: tuple[str, ...] = self._tags if opened else ()
        self._begun = False
        self._trimming = False

    def _is_plain(self, text: str) -> bool:
        if self._inside or self._trimming:
            return False
        return "<" not in text if self._anywhere else self._begun

    def _step(self, arriving: Arriving, i: int) -> tuple[int, str]:
        if self._inside:
            return self._hidden(arriving, i)
        if self._trimming:
            self._trimming = arriving.at(i).isspace()
            return i + self._trimming, ""
        if self._anywhere:
            return self._passing(arriving, i)
        return self._first(arriving, i)

    def _hidden(self, arriving: Arriving, i: int) -> tuple[int, str]:
        start = arriving.text.find("<", i)
        if start != i:
            return len(arriving.text) if start < 0 else start, ""
        ends = (_end_of_tag(arriving, i, "/" + tag) for tag in self._inside)
        end = next(filter(None, ends), None)
        if end:
            self._inside, self._trimming = (), True
        return end or i + 1, ""

    def _passing(self, arriving: Arriving, i: int) -> tuple[int, str]:
        start = arriving.text.find("<", i)
        if start != i:
            start = len(arriving.text) if start < 0 else start
            return start, arriving.text[i:start]
        end = self._enter(arriving, i)
        return (end, "") if end else (i + 1, "<")

    def _first(self, arriving: Arriving, i: int) -> tuple[int, str]:
        if self._begun:
            return len(arriving.text), arriving.text[i:]
        end = self._enter(arriving, arriving.past(_BLANKS, i))
        self._begun = end is None
        return end or i, ""

    def _enter(self, arriving: Arriving, i: int) -> int | None:
        for tag in self._tags:
            end = _end_of_tag(arriving, i, tag)
            if end:
                self._inside = (tag,)
                return end
        return None


def _end_of_tag(arriving: Arriving, i: int, name: str) -> int | None:
    """Where ``<name>`` ends, in whatever case; blanks may stand behind the name. Raises Undecided."""
    if not all(arriving.at(i + n).lower() == letter for n, letter in enumerate("<" + name)):
        return None
    end = arriving.past(_BLANKS, i + 1 + len(name))
    return end + 1 if arriving.at(end) == ">" else None
