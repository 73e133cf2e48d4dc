"""What was said, shortened to its own most telling sentences: for where no model writes a summary."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from filters.injection import one_line
from filters.tokens import in_text

_MOST: Final = 400
_LEAST: Final = 40
_END = re.compile(r"(?<=[.!?…])\s+|(?<=[\u3002\uff01\uff1f])|\n+")
_WORD = re.compile(r"\w+")
_NUMBER = re.compile(
    r"\d|@|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|dozen|hundred)\b", re.IGNORECASE
)
_NAME = re.compile(r"(?<=[^\W\d_] )[A-ZÀ-ÞА-Я]\w+|\b[A-Z]{2,}\b")
_REQUEST = re.compile(
    r"\b(?:i(?:'m| am| want| need| would|'d| have| like| live| prefer)|my|please|can you|could you|call me"
    r"|name|book|order|cancel|change|remind|remember|never|always|must)\b",
    re.IGNORECASE,
)
_SPEAKERS: Final = ("user", "assistant", "notes")
_NAMED: Final = "user "
_LONGEST: Final = 240
_FEW: Final = 3


class Sentence(msgspec.Struct, frozen=True):
    """One sentence, who said it, and where among all it stands."""

    place: int
    speaker: str
    text: str


def digest(said: Iterable[tuple[str, str]], most: int | None = None) -> str:
    """The most telling sentences of what was said, in order, a line for each change of speaker.

    ``said`` is who spoke and what. It has about ``most`` tokens, else a quarter of what was said and no more
    than 400; and never nothing where something was said.
    """
    sentences = list(_sentences(said))
    if most is None:
        most = min(_MOST, max(_LEAST, sum(in_text(s.text) for s in sentences) // 4))
    rarity = Counter(word for s in sentences for word in set(_words(s.text)))
    ranked = sorted(sentences, key=lambda s: (-_worth(s, rarity, len(sentences)), s.place))
    return _written(sorted(_fitting(ranked, most), key=lambda s: s.place))


def shorten(text: str) -> str:
    """A text as it is, or its most telling sentences where it has more than some 400 tokens."""
    return text if in_text(text) <= _MOST else digest(map(parse_note, text.split("\n")), _MOST)


def parse_note(line: str, *, naming: bool = False) -> tuple[str, str]:
    """A line of a former digest, or of notes that somebody made: who said it, and what.

    ``naming`` is whether it may be a user's with his name, which a line of notes may only seem to be.
    """
    speaker, colon, text = line.partition(": ")
    is_known = speaker in _SPEAKERS or (naming and speaker.startswith(_NAMED))
    return (speaker, text) if colon and is_known else ("notes", line)


def _sentences(said: Iterable[tuple[str, str]]) -> Iterable[Sentence]:
    place, seen = 0, set[str]()
    for speaker, text in said:
        for piece in _END.split(text):
            line = one_line(piece or "", _LONGEST)
            if line and line.casefold() not in seen:
                seen.add(line.casefold())
                yield Sentence(place, speaker, line)
                place += 1


def _worth(sentence: Sentence, rarity: Counter[str], count: int) -> float:
    """How much would be lost with a sentence: numbers, names, requests, rare words, the user's own words."""
    words = _words(sentence.text)
    if not words:
        return 0.0
    worth = 2.0 * bool(_NUMBER.search(sentence.text)) + 1.5 * bool(_NAME.search(sentence.text))
    worth += 1.5 * bool(_REQUEST.search(sentence.text)) + 1.0 * (sentence.speaker != "assistant")
    worth += sum(1 - rarity[word] / count for word in set(words)) / len(set(words))
    return worth * (0.4 if len(words) < _FEW and not _NUMBER.search(sentence.text) else 1.0)


def _fitting(ranked: Sequence[Sentence], most: int) -> list[Sentence]:
    chosen: list[Sentence] = []
    left = most
    for sentence in ranked:
        size = in_text(sentence.text) + 1
        if size <= left or not chosen:
            chosen.append(sentence)
            left -= size
    return chosen


def _written(sentences: Sequence[Sentence]) -> str:
    lines: list[str] = []
    speakers = [None, *(s.speaker for s in sentences)]
    for (before, speaker), sentence in zip(pairwise(speakers), sentences, strict=True):
        if before == speaker:
            lines[-1] += f" {sentence.text}"
        else:
            lines.append(f"{speaker}: {sentence.text}")
    return "\n".join(lines)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
