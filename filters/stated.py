"""Whether texts state something in sentences or lines of their own."""

import re
import unicodedata
from collections.abc import Iterable
from functools import cached_property
from typing import Final

# They end a sentence wherever they stand: of Chinese, Hindi, Urdu, Armenian, Amharic, Khmer and Burmese.
_STOPS: Final = "\u3002\uff01\uff61\u0964\u0965\u06d4\u0589\u1362\u17d4\u104b"
_ENDS: Final = f".!\u2026\uff0e{_STOPS}"
_END: Final = re.compile(
    rf" ?(?:[.!\u2026\uff0e]+[\"'\u201d\u2019\u00bb)]*(?=\s|\Z)|[{_STOPS}]|\n|\Z|(?<=[?\uff1f])(?=\s|\Z))"
)
_NOTED: Final = re.compile(r"\s*[\[(]")
# What a sentence, or the mark of an item, ends with before another sentence begins.
_BEFORE: Final = (*".!?\u2026", "\n-", "\n*", "\n\u2022", "\n\u2013", "\n+")
_RIGHT_BEFORE: Final = (*_STOPS, "\uff1f", "\n")
_LABELS: Final = (":", "]", ")")
_LOOKED_BACK: Final = 8
_MOST_PLACES: Final = 100


def plain(text: str) -> str:
    """The text in one case, with single spaces and no full stop; what else tells statements apart stays."""
    words = " ".join(_folded(text).split())
    return words.rstrip(f" {_ENDS}") or words


class Stated:
    """What some texts state.

    Letters that merely occur within a sentence state nothing: "Offer vegetarian dishes" does not say
    "Vegetarian." Case, white space and the full stop may differ. In ``annotated`` texts, labels such as
    ``ann: `` and ``[10:30] `` may stand before a statement, and a note in brackets behind it.
    """

    def __init__(self, texts: Iterable[str], *, annotated: bool = False) -> None:
        self._texts = texts
        self._before = (*_BEFORE, *_LABELS) if annotated else _BEFORE
        self._annotated = annotated

    def holds(self, statement: str) -> bool:
        """Whether it is stated; not told for sure of what occurs a hundred times as a part of sentences."""
        words = _lines(statement).strip().rstrip(f" {_ENDS}")
        place = -1
        for _ in range(_MOST_PLACES if words else 0):
            place = self._text.find(words, place + 1)
            if place < 0:
                return False
            if self._begins(place) and self._ends(place + len(words)):
                return True
        return False

    @cached_property
    def _text(self) -> str:
        """Prepared when it is asked for."""
        return "\n" + "\n".join(map(_lines, self._texts))

    def _begins(self, place: int) -> bool:
        before = self._text[max(0, place - _LOOKED_BACK) : place]
        lead = before.rstrip(" ")
        return lead.endswith(_RIGHT_BEFORE) or (lead != before and lead.endswith(self._before))

    def _ends(self, place: int) -> bool:
        if _END.match(self._text, place):
            return True
        return self._annotated and _NOTED.match(self._text, place) is not None


def _lines(text: str) -> str:
    """The text in one case, with single spaces in its lines."""
    return "\n".join(" ".join(line.split()) for line in _folded(text).split("\n"))


def _folded(text: str) -> str:
    folded = text.casefold()
    return folded if folded.isascii() else unicodedata.normalize("NFC", folded)
