"""Bare web addresses, taken out of text while it arrives. Mail addresses and plain domains stay."""

import re

from filters.text.rewriter import Arriving, Rewriter

# A letter before it makes an ``h`` the end of a word. Chinese puts no space before an address.
_MAYBE = re.compile(
    r"""[hHwW<](?:
        (?<=<)(?=[hHwW]|\Z)
      | (?<![A-Za-z].)(?:(?<=[hH])(?=ttps?://|t{0,2}\Z|ttps?:?/?\Z) | (?<=[wW])(?=ww\.|w{0,2}\Z))
    )""",
    re.VERBOSE,
)
_HEADS = ("https://", "http://", "www.")
_INSIDE = re.compile(r"[A-Za-z0-9/#%&=+@$~_-]+")
_MARKS = re.compile(r"[.,;:!?()\[\]'*]{0,16}")


class Addresses(Rewriter):
    """Says ``instead`` for each bare address; where that is nothing, a space that would stand double goes.

    Behind ``](`` an address is a link's target, for which its text stands already: nothing is said for it.
    """

    def __init__(self, instead: str) -> None:
        super().__init__()
        self._instead = instead
        self._inside = False
        self._bracketed = False
        self._depth = 0
        self._apart = False

    def _is_plain(self, text: str) -> bool:
        return not (self._inside or self._apart) and _MAYBE.search(text) is None

    def _step(self, arriving: Arriving, i: int) -> tuple[int, str]:
        if self._inside:
            return self._further(arriving, i)
        if self._apart:
            self._apart = False
            return i + (arriving.at(i) == " "), ""
        found = _MAYBE.search(arriving.text, i)
        start = found.start() if found else len(arriving.text)
        return self._first(arriving, i) if start == i else (start, arriving.text[i:start])

    def _first(self, arriving: Arriving, i: int) -> tuple[int, str]:
        before, first = arriving.before(i), arriving.at(i)
        end = None if first != "<" and before.isascii() and before.isalpha() else _end_of_head(arriving, i)
        if end is None:
            return i + 1, first
        self._inside, self._bracketed, self._depth = True, first == "<", 0
        self._apart = not self._instead and (not before or before.isspace())
        return end, "" if arriving.follows(i, "](") else self._instead

    def _further(self, arriving: Arriving, i: int) -> tuple[int, str]:
        inside = _INSIDE.match(arriving.text, i)
        if inside:
            return inside.end(), ""
        if self._depth and arriving.at(i) == ")":
            self._depth -= 1
            return i + 1, ""
        # Marks belong to an address when more of it follows, and else to the sentence around it.
        end = arriving.past(_MARKS, i)
        if end > i and _INSIDE.match(arriving.at(end)):
            marks = arriving.text[i:end]
            self._depth = max(0, self._depth + marks.count("(") - marks.count(")"))
            return end, ""
        self._inside = False
        return (i + 1 if self._bracketed and arriving.at(i) == ">" else i), ""


def _end_of_head(arriving: Arriving, i: int) -> int | None:
    i += arriving.at(i) == "<"
    for head in _HEADS:
        if all(arriving.at(i + n).lower() == letter for n, letter in enumerate(head)):
            return i + len(head)
    return None
