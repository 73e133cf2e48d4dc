"""Digests: the most telling sentences of a transcript, where no model writes a summary."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from filters.injection import one_line
from filters.tokens import in_text

_MOST_TOKENS: Final = 400
_FEWEST_TOKENS: Final = 40
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
_LONGEST_SENTENCE: Final = 240
_FEW_WORDS: Final = 3


class _Sentence(msgspec.Struct, frozen=True):
    """A sentence, its speaker, and its place in the transcript."""

    place: int
    speaker: str
    text: str


def digest(transcript: Iterable[tuple[str, str]], most: int | None = None) -> str:
    """The most telling sentences of a transcript, in order, a line for each change of speaker.

    A transcript is pairs of speaker and text. The digest has about ``most`` tokens, by default a quarter of
    the transcript's and no more than 400, and at least one sentence.
    """
    sentences: list[_Sentence] = []
    texts = set[str]()
    for speaker, text in transcript:
        for piece in _END.split(text):
            line = one_line(piece or "", _LONGEST_SENTENCE)
            if line and line.casefold() not in texts:
                texts.add(line.casefold())
                sentences.append(_Sentence(len(sentences), speaker, line))
    if most is None:
        most = min(_MOST_TOKENS, max(_FEWEST_TOKENS, sum(in_text(s.text) for s in sentences) // 4))
    rarity = Counter(word for s in sentences for word in set(_words(s.text)))
    chosen: list[_Sentence] = []
    for sentence in sorted(sentences, key=lambda s: (-_worth(s, rarity, len(sentences)), s.place)):
        size = in_text(sentence.text) + 1
        if size <= most or not chosen:
            chosen.append(sentence)
            most -= size
    lines: list[str] = []
    last = None
    for sentence in sorted(chosen, key=lambda s: s.place):
        if sentence.speaker == last:
            lines[-1] += f" {sentence.text}"
        else:
            lines.append(f"{sentence.speaker}: {sentence.text}")
        last = sentence.speaker
    return "\n".join(lines)


def shorten(text: str) -> str:
    """A text, or its digest if it has more than about 400 tokens."""
    if in_text(text) <= _MOST_TOKENS:
        return text
    return digest(map(parse_note, text.split("\n")), _MOST_TOKENS)


def parse_note(line: str, *, naming: bool = False) -> tuple[str, str]:
    """The speaker and the text of a line of a digest; a line of other notes is by ``notes``.

    With ``naming``, the speaker may be a user with a name, as which a line of notes may only disguise itself.
    """
    speaker, colon, text = line.partition(": ")
    is_speaker = speaker in _SPEAKERS or (naming and speaker.startswith(_NAMED))
    return (speaker, text) if colon and is_speaker else ("notes", line)


def _worth(sentence: _Sentence, rarity: Counter[str], count: int) -> float:
    """How much would be lost with a sentence: numbers, names, requests, rare words, the user's own words."""
    words = _words(sentence.text)
    if not words:
        return 0.0
    has_number = bool(_NUMBER.search(sentence.text))
    worth = 2.0 * has_number + 1.5 * bool(_NAME.search(sentence.text))
    worth += 1.5 * bool(_REQUEST.search(sentence.text)) + 1.0 * (sentence.speaker != "assistant")
    worth += sum(1 - rarity[word] / count for word in set(words)) / len(set(words))
    return worth * (0.4 if len(words) < _FEW_WORDS and not has_number else 1.0)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
