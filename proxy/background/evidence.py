"""Whether a text tells of another one: by the names, numbers and rare words that both have."""

import re
import unicodedata
from math import isqrt
from typing import Final

from filters.letters import WORD
from proxy.memory.archive.languages import STOP_WORDS

# Chinese characters, katakana and Hangul: each two neighbours count as a word. Hiragana are endings.
_PAIRED: Final = (
    "\u30a1-\u30fa\u30fc\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
# Thai to Tibetan, Burmese and Khmer, in which no spaces tell words apart: each four neighbours.
_UNSPACED: Final = "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff"
_PART: Final = re.compile(
    rf"(?P<number>\d+)|(?P<paired>[{_PAIRED}]+)|(?P<unspaced>[{_UNSPACED}]+)|[\u3040-\u309f]+"
    rf"|(?P<word>[^\d{_PAIRED}{_UNSPACED}\u3040-\u309f]+)"
)
_SEPARATOR: Final = re.compile(r"(?<=\d)[.,'\u2019\u00a0](?=\d{3}(?!\d))")
_WITHIN_SENTENCE: Final = re.compile(r"(?<=[^\W\d_] )[^\W\d_]\w+")
_APOSTROPHE: Final = re.compile(r"(?<=\w)['\u2019](?=\w)")
_ACCENTS: Final = re.compile("[\u0300-\u036f]+")
_FEWEST_LETTERS: Final = 4
_FEWEST_LETTERS_OF_A_NAME: Final = 2
# What words have behind these letters are mostly endings.
_STEM: Final = 5
_LONGEST_NUMBER: Final = 40
_SHARE: Final = 6
# Where of enough words more than one in so many has a capital, as in German, capitals are not for names.
_CAPITALS: Final = 5
_ENOUGH_WORDS: Final = 30


def tells_of(text: str, source: str, task: str) -> bool:
    """Whether a text tells of a source, and was not written out of nothing in answer to a ``task``.

    One name or number that both have is enough. Rare words are shared by chance, too, and the more so the
    longer a source is: more than a sixth of its own are needed, of many no more than their root. What stands
    in the task is no evidence, and a source in which there is nothing to share is told of by any text.
    """
    known, own, others = (_Words(each) for each in (task, text, source))
    terms = others.terms - known.terms
    names = (_names(source, text) & own.names & others.names) - known.names
    if names or (own.numbers & others.numbers) or not (terms or others.numbers):
        return True
    return len(own.terms & terms) > min(len(terms) // _SHARE, isqrt(len(terms)))


class _Words:
    """The words of a text: its numbers, what may be names, and the stems of its rare words.

    In scripts without spaces, pieces of a few letters stand for words.
    """

    def __init__(self, text: str) -> None:
        self.numbers: set[int] = set()
        self.names: set[str] = set()
        self.terms: set[str] = set()
        plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", _APOSTROPHE.sub("", text)))
        plain = _SEPARATOR.sub("", unicodedata.normalize("NFKC", plain)).casefold()
        for part in (part for word in WORD.findall(plain) for part in _PART.finditer(word)):
            kind, run = part.lastgroup, part[0].strip("_")
            if kind == "number":
                self.numbers.add(int(run[:_LONGEST_NUMBER]))
            elif kind == "paired":
                self.terms.update(run[i : i + 2] for i in range(len(run) - 1))
            elif kind == "unspaced":
                self.terms.update(run[i : i + 4] for i in range(max(len(run) - 3, 1)))
            elif kind == "word" and run not in STOP_WORDS and len(run) >= _FEWEST_LETTERS_OF_A_NAME:
                self.names.add(run)
                if len(run) >= _FEWEST_LETTERS:
                    self.terms.add(run[:_STEM])


def _names(source: str, text: str) -> set[str]:
    """The words with a capital within a sentence of either; none where that is no mark of a name."""
    words = _WITHIN_SENTENCE.findall(_APOSTROPHE.sub("", source))
    names = [word for word in words if word[0].isupper()]
    if len(names) * _CAPITALS > len(words) >= _ENOUGH_WORDS:
        return set()
    names += [word for word in _WITHIN_SENTENCE.findall(_APOSTROPHE.sub("", text)) if word[0].isupper()]
    return set().union(*(_Words(name).names for name in names))
