"""Compares the words of texts, regardless of case, punctuation and spacing."""

import re
from collections import Counter
from hashlib import blake2b
from itertools import takewhile
from typing import Final

from filters.letters import UNSPACED, WORD, bare, offset_of_letters

ELLIPSES: Final = ("...", "…")
"""The characters that some voice platforms append to a cut answer."""
ELLIPSIS_CHARACTERS: Final = ".… "
# Fewer words may be equal by chance.
_MIN_WORDS: Final = 3
_MIN_SHARE: Final = 0.6
# With fewer letters, endings may be equal by chance.
_MIN_ENDING: Final = 6
_WITHIN_WORD: Final = re.compile(rf"[^\W_{UNSPACED}]{{2}}")


def same_words(one: str, other: str) -> bool:
    """Whether both have the same words; case, accents, punctuation and white space may differ."""
    if one == other:
        return True
    letters = bare(one)
    return bool(letters) and letters == bare(other)


def text_hash(text: str) -> str:
    """Returns 16 hex digits that are equal for texts with the same words, and do not reveal them."""
    return blake2b((bare(text) or text).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def continues(text: str, start: str) -> bool:
    """Whether ``text`` begins with the words of ``start`` and is longer; the last one may be cut."""
    opening, whole = bare(start), bare(text)
    return bool(opening) and len(whole) > len(opening) and whole.startswith(opening)


def continues_by_words(text: str, start: str) -> bool:
    """Whether ``text`` is ``start`` and more words; no word is cut, in scripts with spaces."""
    if not continues(text, start):
        return False
    end = offset_of_letters(text, len(bare(start)))
    return not _WITHIN_WORD.match(text[max(0, end - 1) : end + 1])


def ends_alike(text: str, other: str) -> bool:
    """Whether both end with the same letters, so many that ``other`` has them only there."""
    letters, whole = bare(text), bare(other)
    pairs = zip(reversed(letters), reversed(whole), strict=False)
    count = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    shared = whole[len(whole) - count :]
    return count >= _MIN_ENDING and whole.find(shared) == len(whole) - count


def shares_words(one: str, other: str) -> bool:
    """Whether most words of ``one`` are words of ``other``, in any order."""
    words, others = (Counter(WORD.findall(text.casefold())) for text in (one, other))
    count = words.total()
    return count >= _MIN_WORDS and (words & others).total() >= _MIN_SHARE * count


def reordered(one: str, other: str) -> bool:
    """Whether both have the same words, in any order."""
    one, other = one.casefold(), other.casefold()
    first = WORD.search(one)
    if first is None or first[0] not in other:  # the fast path: other words
        return False
    words, others = WORD.findall(one), WORD.findall(other)
    return len(words) == len(others) and sorted(words) == sorted(others)
