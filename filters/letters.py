"""Comparison of texts by their letters and digits, and the unheard part of an answer."""

import re
import unicodedata
from bisect import bisect_left
from typing import Final

# Vowels, tones and voiced sounds that are written as marks: in Thaana and N'Ko, the scripts of India, Thai
# and Lao, Tibetan, Burmese, the scripts of the Philippines and Khmer, those of Indonesia, kana, and related
# ones. The ranges also contain letters. The points of Arabic and Hebrew are left out, since few people write
# them.
_SIGNS: Final = (
    "\u07a6-\u07b0\u07eb-\u07f3"
    "\u0900-\u0963\u0981-\u09e3\u09fe-\u0a75\u0a81-\u0ae3\u0afa-\u0b63\u0b82-\u0bd7\u0c00-\u0c63\u0c81-\u0c83"
    "\u0cbc-\u0d4d\u0d57-\u0d63\u0d81-\u0df3\u0e31-\u0e3a\u0e47-\u0e4e\u0eb1-\u0ecd"
    "\u0f71-\u0f84\u0f8d-\u0fbc\u102b-\u103e\u1056-\u109d\u1752-\u17d3\u17dd"
    "\u1a17-\u1a1b\u1a55-\u1a7f\u1b00-\u1b44\u1b6b-\u1b73\u1b80-\u1bf3\u1c24-\u1c37\ua980-\ua9c0"
    "\u3099\u309a\ua9e5-\uaa4d\uaa7b-\uaac1\uaaeb-\uaaef\uaaf5\uaaf6\uabe3-\uabea"
)
_ACCENTS: Final = re.compile("[\u0300-\u036f]+")
UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\u0f00-\u0fff\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff"
)
"""Scripts without spaces between words: Thai and Lao, Burmese, Khmer, kana, Chinese characters, Tibetan."""
# Latin letters and typographic signs, which are normalised one by one, since none combines with the next one.
_SINGLES: Final = (*range(0x300), *range(0x2010, 0x205F))
_SINGLY: Final = re.compile("[\0-\u02ff\u2010-\u205e]*")
_OTHERS: Final = re.compile(f"[^\\w{_SIGNS}]+")
_CHUNK: Final = re.compile(r"\S+")
_UNSPACED: Final = re.compile(f"[{UNSPACED}]")
WORD: Final = re.compile(f"[\\w{_SIGNS}]+")
"""A run of letters, digits and signs."""


def bare(text: str) -> str:
    """Returns the letters and digits of a text, in lower case and without accents."""
    return text.translate(_LETTERS) if text.isascii() or _SINGLY.fullmatch(text) else _normalized(text)


def _normalized(text: str) -> str:
    plain = unicodedata.normalize("NFKC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text)))
    return _OTHERS.sub("", plain).replace("_", "").casefold()


_LETTERS: Final = {code: _normalized(chr(code)) or None for code in _SINGLES}


def offset_of_letters(text: str, letters: int) -> int:
    """Returns the offset up to which a text has this number of letters."""
    return bisect_left(range(len(text)), letters, key=lambda end: len(bare(text[:end])))


def unheard(prefix: str, original: str) -> str:
    """Returns the part of ``original`` after ``prefix``; empty if there is none, or if the beginnings differ.

    Case, accents, punctuation and white space may differ. A word that was cut in the middle counts as
    unheard, except in scripts without spaces between words.
    """
    cut = len(prefix)
    clean = bool(prefix) and original.startswith(prefix)
    if not clean or not (
        prefix[-1].isspace() or original[cut : cut + 1].isspace() or _UNSPACED.match(prefix[-1])
    ):
        cut = _end_of_last_word(bare(prefix), original)
    rest = original[cut:]
    words = next((chunk.start() for chunk in _CHUNK.finditer(rest) if bare(chunk.group())), len(rest))
    return rest[words:].strip()


def _end_of_last_word(prefix: str, original: str) -> int:
    """Returns the offset of the first word not heard to its end; the length of the text if there is none."""
    done = 0
    for chunk in _CHUNK.finditer(original):
        word = bare(chunk.group())
        if not prefix.startswith(word, done):
            rest = prefix[done:]
            return chunk.start() + _within(chunk.group(), rest) if word.startswith(rest) else len(original)
        done += len(word)
    return len(original)


def _within(chunk: str, prefix: str) -> int:
    """Returns how many characters of a chunk were heard, without the word in which the cut is."""
    position = offset_of_letters(chunk, len(prefix))
    while position and not _UNSPACED.match(chunk[position - 1]):
        position -= 1
    return position
