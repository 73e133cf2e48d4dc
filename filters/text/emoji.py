"""Emoji taken out of text while it arrives. Letters, digits, ©, ®, ™ and arrows of text stay."""

import re

from filters.text.rewriter import Arriving, Rewriter

# Pictographs and their parts: keycap, variation, skin tone, flag and tag. Among the dingbats, quotation marks
# and circled digits are text, and so are the accidentals of music.
_PARTS = (
    "\u20e3\ufe0e\ufe0f\u231a\u231b\u2328\u23cf\u23e9-\u23f3\u23f8-\u23fa"
    "\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u266c\u2670-\u275a\u275f-\u2775\u2794-\u27bf"
    "\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001faff\U000e0020-\U000e007f"
)
_FIRST = re.compile(f"[{_PARTS}]")
# The joiner belongs to an emoji only behind one: scripts of India and Arabic have their own use for it.
_FURTHER = re.compile(f"[{_PARTS}\u200d]*")


class Emoji(Rewriter):
    """Takes emoji out, and the space that would stand double."""

    def __init__(self) -> None:
        super().__init__()
        self._inside = False
        self._apart = False

    def _is_plain(self, text: str) -> bool:
        return not self._inside and _FIRST.search(text) is None

    def _step(self, arriving: Arriving, i: int) -> tuple[int, str]:
        if self._inside:
            return self._further(arriving, i)
        found = _FIRST.search(arriving.text, i)
        if found is None:
            return len(arriving.text), arriving.text[i:]
        before = arriving.before(found.start())
        self._inside, self._apart = True, not before or before.isspace()
        return found.end(), arriving.text[i : found.start()]

    def _further(self, arriving: Arriving, i: int) -> tuple[int, str]:
        found = _FURTHER.match(arriving.text, i)
        if found and found.end() > i:
            return found.end(), ""
        self._inside = False
        return (i + 1 if self._apart and arriving.at(i) == " " else i), ""
