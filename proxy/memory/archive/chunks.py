"""Documents in parts that can be read by themselves."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from proxy.memory.archive.archive import Chunk

LONGEST: Final = 900
"""How many characters a part has at the most: what one can be told of at a time."""

_MARKS: Final = re.compile(r"(#{1,6})\s+")
_FENCE: Final = re.compile(r"\s*(```|~~~)")
_PARAGRAPH: Final = re.compile(r"(?:\n|\r(?!\n))\s*[\r\n]\s*")
# A full stop within a price, a version or an address ends no sentence.
_SENTENCE: Final = re.compile("(?<=[.!?])\\s+|(?<=[\u3002\uff01\uff1f])\\s*")


def chunks(text: str, title: str) -> list[Chunk]:
    """The parts of a text or Markdown document, each under the headings that it stands under.

    They are the document's own text, in its order; between them stands nothing but white space.
    """
    return [
        Chunk(title=heading, text=part)
        for heading, section in _sections(text, title)
        for part in _parts(section)
    ]


def _sections(text: str, title: str) -> Iterator[tuple[str, str]]:
    headings: list[tuple[int, str]] = []
    lines: list[str] = []
    fenced = False
    for line in text.splitlines(keepends=True):
        fenced ^= bool(_FENCE.match(line))
        heading = None if fenced else _heading(line)
        if heading is None:
            lines.append(line)
            continue
        yield _title(title, headings), "".join(lines)
        headings = [*(one for one in headings if one[0] < heading[0]), heading]
        lines = []
    yield _title(title, headings), "".join(lines)


def _heading(line: str) -> tuple[int, str] | None:
    """The level and the words of a heading, if the line is one."""
    marks = _MARKS.match(line)
    if marks is None:
        return None
    words = line[marks.end() :].rstrip()
    bare = words.rstrip("#")
    name = bare.rstrip() if bare != bare.rstrip() or not bare else words
    return (len(marks[1]), name) if name else None


def _title(title: str, headings: list[tuple[int, str]]) -> str:
    return " > ".join([title, *(name for _, name in headings)])


def _parts(section: str) -> Iterator[str]:
    """Paragraphs together as far as they fit; one that is too long, by sentences, then by characters."""
    return filter(None, map(str.strip, _together(_cut(section, _PARAGRAPH), _by_sentences)))


def _by_sentences(paragraph: str) -> Iterator[str]:
    return _together(_cut(paragraph, _SENTENCE), _by_length)


def _by_length(sentence: str) -> Iterator[str]:
    yield from (sentence[start : start + LONGEST] for start in range(0, len(sentence), LONGEST))


def _cut(text: str, between: re.Pattern[str]) -> Iterator[str]:
    """The pieces of a text, each with what stands between it and the next."""
    start = 0
    for found in between.finditer(text):
        yield text[start : found.end()]
        start = found.end()
    yield text[start:]


def _together(pieces: Iterable[str], smaller: Callable[[str], Iterable[str]]) -> Iterator[str]:
    """Pieces together as long as they fit; those that do not fit by themselves are cut smaller."""
    held = ""
    for piece in pieces:
        whole = held + piece
        if len(whole.strip()) <= LONGEST:
            held = whole
            continue
        yield held
        *done, held = smaller(piece) if len(piece.strip()) > LONGEST else [piece]
        yield from done
    yield held
