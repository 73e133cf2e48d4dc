"""Replacement in texts of which most were searched a turn ago."""

import secrets
from collections.abc import Callable

_GENERATION = 32_768
# While a text is hashed, up to a millisecond for one so long, nothing else runs.
_LONGEST = 1_000_000


class Replacer:
    """Texts as ``replace`` returns them; one that it returns as the very same object is not searched again.

    The last 32,768 of these, of up to a million characters, are remembered, and at most twice as many: by a
    keyed hash of each, and without any of their words.
    """

    def __init__(self, replace: Callable[[str], str]) -> None:
        self._replace = replace
        # No text may pass for another that somebody chose. "41" and the one character whose two bytes these
        # are have one hash, and where PYTHONHASHSEED is set anybody can compute it; behind secret characters
        # of one byte neither is so.
        self._key = secrets.token_hex(16)
        self._recent: set[int] = set()
        self._older: set[int] = set()

    def __call__(self, text: str) -> str:
        """The text with what is replaced."""
        if len(text) > _LONGEST:
            return self._replace(text)
        digest = hash(self._key + text)
        if digest in self._recent:
            return text
        if digest not in self._older and (replaced := self._replace(text)) is not text:
            return replaced
        self._recent.add(digest)
        if len(self._recent) >= _GENERATION:
            self._older, self._recent = self._recent, set()
        return text
