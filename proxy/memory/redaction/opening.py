"""What is held up to a find, and whether a text says just this and half of the find."""

import re
from typing import Final, NamedTuple

from filters.letters import bare
from filters.text.sensitive import Sensitive
from proxy.memory.speech.wording import cut

BROKEN: Final = ""
"""The kind of what a stream that broke off may have begun."""
TELLING: Final = re.compile("[0-9].*[0-9].*[0-9].*[0-9]|@", re.DOTALL)
"""What fewer than four digits are not: half a number. They are a table's, or a time."""
_NUMBERS: Final = frozenset({"card", "iban", "ip", "phone"})
_NUMBER: Final = re.compile("[0-9]")
_BEFORE: Final = re.compile(r"^\W+")
_COUNTRY: Final = 2


class Split(NamedTuple):
    """A text with marks, its letters, and how many of these no more text can change."""

    text: str
    letters: str
    settled: int


def split(settled: str, half: str) -> Split:
    """A text whose end is not settled."""
    return Split(settled + half, bare(settled + half), len(bare(settled)))


class Opening(NamedTuple):
    """What somebody said up to a find, its letters, and of which kind the find is."""

    role: str
    text: str
    letters: str
    kind: str

    def of(self, text: str) -> str:
        """As much of a text as says this."""
        return self.text if text.startswith(self.text) else text[: cut(text, len(self.letters))].rstrip()

    def is_cut(self, said: Split, begun: Sensitive) -> bool:
        """Whether a text says just this, and then half of what is ``begun`` so."""
        count = len(self.letters)
        if not (said.settled <= count < len(said.letters) and said.letters.startswith(self.letters)):
            return False
        rest = _BEFORE.sub("", said.text[cut(said.text, count) :])
        if self.kind == BROKEN:
            return bool(TELLING.search(rest))
        if self.kind not in _NUMBERS:
            return len(rest.split()) == 1
        is_half = bool(_NUMBER.search(rest)) or (self.kind == "iban" and len(rest) <= _COUNTRY)
        return is_half and begun.settled(rest) == 0


def opening(role: str, text: str, kind: str) -> Opening:
    """What somebody said up to a find."""
    return Opening(role, text.rstrip(), bare(text), kind)
