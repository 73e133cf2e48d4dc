"""What the caller missed of an answer that was cut short."""

import re
from bisect import bisect_left

from filters.letters import UNSPACED, bare

_UNSPACED = re.compile(f"[{UNSPACED}]")
_CHUNK = re.compile(r"\S+")


def unheard(heard: str, original: str) -> str:
    """What of ``original`` follows ``heard``; empty when nothing does, or when it begins with other words.

    Case, accents, punctuation and white space may differ. A word that was cut in the middle counts as
    unheard as a whole, except where words are not told apart by spaces.
    """
    start = len(heard) if _ends_between_words(heard, original) else _start(bare(heard), original)
    rest = original[start:]
    words = next((chunk.start() for chunk in _CHUNK.finditer(rest) if bare(chunk.group())), len(rest))
    return rest[words:].strip()


def _ends_between_words(heard: str, original: str) -> bool:
    """Whether the cut is a clean one, which needs no looking word by word."""
    if not heard or not original.startswith(heard):
        return False
    return heard[-1].isspace() or original[len(heard) :][:1].isspace() or bool(_UNSPACED.match(heard[-1]))


def _start(heard: str, original: str) -> int:
    """Where the first word stands that was not heard to its end; the very end when there is none."""
    done = 0
    for chunk in _CHUNK.finditer(original):
        word = bare(chunk.group())
        if not heard.startswith(word, done):
            rest = heard[done:]
            return chunk.start() + _within(chunk.group(), rest) if word.startswith(rest) else len(original)
        done += len(word)
    return len(original)


def _within(chunk: str, heard: str) -> int:
    """How much of a chunk was heard, in characters, less the word that the cut is in."""
    position = bisect_left(range(len(chunk)), len(heard), key=lambda end: len(bare(chunk[:end])))
    while position and not _UNSPACED.match(chunk[position - 1]):
        position -= 1
    return position
