"""Documents in parts that can be read by themselves."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from proxy.memory.archive.archive import Chunk

LONGEST: Final = 900
"""How many characters a part has at the most: what one can be told of at a time."""

_HEADING: Final = re.compile(r"^#{1,6}\s+(.+?)\s*#*$")
_FENCE: Final = re.compile(r"^\s*(```|~~~)")
_PARAGRAPH: Final = re.compile(r"\n\s*\n")
_SENTENCE: Final = re.compile("(?<=[.!?\u3002\uff01\uff1f])\\s*")


def chunks(text: str, title: str) -> list[Chunk]:
    """The parts of a text or Markdown document, each under the headings that it stands under."""
    return [
        Chunk(title=heading, text=part)
        for heading, section in _sections(text, title)
        for part in _parts(section)
        if part.strip()
    ]


def _sections(text: str, title: str) -> Iterator[tuple[str, str]]:
    headings: list[tuple[int, str]] = []
    lines: list[str] = []
    fenced = False
    for line in text.splitlines():
        fenced ^= bool(_FENCE.match(line))
        heading = None if fenced else _HEADING.match(line)
        if heading is None:
            lines.append(line)
            continue
        yield _title(title, headings), "\n".join(lines)
        level = len(line) - len(line.lstrip("#"))
        headings = [*(one for one in headings if one[0] < level), (level, heading[1])]
        lines = []
    yield _title(title, headings), "\n".join(lines)


def _title(title: str, headings: list[tuple[int, str]]) -> str:
    return " > ".join([title, *(name for _, name in headings)])


def _parts(section: str) -> Iterator[str]:
    """Paragraphs together as far as they fit; one that is too long, by sentences, then by characters."""
    yield from _joined((p.strip() for p in _PARAGRAPH.split(section) if p.strip()), "\n\n", _by_sentences)


def _by_sentences(paragraph: str) -> Iterator[str]:
    yield from _joined((s for s in _SENTENCE.split(paragraph) if s), " ", _by_length)


def _by_length(sentence: str) -> Iterator[str]:
    yield from (sentence[start : start + LONGEST] for start in range(0, len(sentence), LONGEST))


def _joined(pieces: Iterable[str], between: str, smaller: Callable[[str], Iterable[str]]) -> Iterator[str]:
    """Pieces joined as long as they fit; those that do not fit by themselves are cut smaller."""
    held = ""
    for piece in pieces:
        whole = f"{held}{between}{piece}" if held else piece
        if len(whole) <= LONGEST:
            held = whole
            continue
        if held:
            yield held
        *done, held = smaller(piece) if len(piece) > LONGEST else [piece]
        yield from done
    if held:
        yield held
