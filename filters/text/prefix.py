"""Prefixes at the beginning of an answer, which models imitate from the messages that they are shown."""

import re
from collections.abc import Iterable

from filters.text.rewriter import Arriving, Rewriter

_LONGEST_NAME = 64
_INSIDE = re.compile(r"[0-9A-Za-z:.,/+\- ]{0,40}")
_TIME = re.compile(r"[^:]*\d:\d\d(?:\D.*)?")
_BLANKS = re.compile(r"[ \t]{0,8}")
_WIDE_COLON = "\uff1a"
_CLOSING = {"[": "]", "(": ")"}


class Prefixes(Rewriter):
    """Takes bracketed times and speakers' names out from before the first word.

    A name is taken with the colon behind it, whatever its case; without names or times none is taken.
    """

    def __init__(self, *, times: bool, names: Iterable[str]) -> None:
        super().__init__()
        known = {name.strip().lower() for name in names}
        self._names = sorted((n for n in known if 0 < len(n) <= _LONGEST_NAME), key=len, reverse=True)
        self._times = times
        self._taken = False
        self._begun = False

    def _is_plain(self, text: str) -> bool:
        return self._begun

    def _step(self, arriving: Arriving, i: int) -> tuple[int, str]:
        if self._begun:
            return len(arriving.text), arriving.text[i:]
        if arriving.at(i).isspace():
            return i + 1, "" if self._taken else arriving.at(i)
        end = self._end_of_time(arriving, i) or self._end_of_name(arriving, i)
        self._taken, self._begun = end is not None, end is None
        return end or i, ""

    def _end_of_time(self, arriving: Arriving, i: int) -> int | None:
        closing = _CLOSING.get(arriving.at(i)) if self._times else None
        if not closing or not (arriving.at(i + 1).isdigit() or arriving.at(i + 1) == "+"):
            return None
        end = arriving.past(_INSIDE, i + 1)
        is_time = arriving.at(end) == closing and _TIME.fullmatch(arriving.text, i + 1, end)
        return end + 1 if is_time else None

    def _end_of_name(self, arriving: Arriving, i: int) -> int | None:
        for name in self._names:
            if all(arriving.at(i + n).lower() == letter for n, letter in enumerate(name)):
                colon = arriving.past(_BLANKS, i + len(name))
                is_prefix = arriving.at(colon) == _WIDE_COLON or _is_colon(arriving, colon)
                return colon + 1 if is_prefix else None
        return None


def _is_colon(arriving: Arriving, i: int) -> bool:
    after = arriving.at(i + 1) if arriving.at(i) == ":" else "-"
    return not after or after.isspace()
