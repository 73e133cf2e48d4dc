"""Patterns that users write, and replacement in texts, most of which were searched in the turn before.

The patterns run on RE2, whose time is linear in the length of the text for any pattern.
"""

import secrets
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from pydantic import AfterValidator

_GENERATION = 32_768
# In characters: hashing a text of this length blocks the event loop for up to a millisecond.
_LONGEST = 1_000_000


def compiled(pattern: str) -> Any:
    """Compiles a pattern, with the interface of ``re``. Raises ValueError, which says what is wrong."""
    import re2  # type: ignore[import-untyped]  # noqa: PLC0415 - two megabytes, only where patterns are used

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(f"{pattern!r} is no pattern of RE2: {_message(error)}") from None


def _is_pattern(pattern: str) -> str:
    compiled(pattern)
    return pattern


def _message(error: Exception) -> str:
    reason = error.args[0] if error.args else "unknown"
    text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
    return f"{text} (it has no look-around)" if "(?" in text else text


OwnPattern = Annotated[str, AfterValidator(_is_pattern)]
"""An option with a pattern, which is checked when the option is read."""


class Bounded:
    """A pattern whose matches have at most ``longest`` characters, so that a stream need not wait for more.

    A longer match is cut to ``longest`` characters if the pattern allows it, and the search continues after
    it.
    """

    def __init__(self, pattern: str, longest: int) -> None:
        self._pattern = compiled(pattern)
        self.longest = longest

    def spans(self, text: str, start: int) -> Iterator[tuple[int, int]]:
        """Yields start and end of each match from ``start`` on, in order; empty matches are left out."""
        text = encodable(text)
        while start < len(text):
            begin, end = self._next(text, start)
            if begin < end:
                yield begin, end
            start = end

    def _next(self, text: str, start: int) -> tuple[int, int]:
        """The span of the next match, or an empty span at which to continue the search.

        The window is twice as long as a match, so that it contains every match that begins in its first half.
        """
        before = min(start, 1)
        window = text[start - before : start + 2 * self.longest + 1]
        found = self._pattern.search(window, before)
        if not found or found.start() - before >= self.longest:
            return start + self.longest, start + self.longest
        begin = found.start()
        if found.end() - begin > self.longest:
            found = self._pattern.match(window, begin, begin + self.longest)
        length = found.end() - begin if found else 0
        begin += start - before
        return begin + (length == 0), begin + max(length, 1)


def encodable(text: str) -> str:
    """The text with each half character replaced by a whole one: RE2 reads UTF-8, which has no halves."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text


class Replacer:
    """Calls ``replace`` for texts, but not again for a text that it has returned unchanged.

    It remembers the last 32,768 unchanged texts of up to a million characters, and at most twice as many, by
    a keyed hash of each; it keeps no text.
    """

    def __init__(self, replace: Callable[[str], str]) -> None:
        self._replace = replace
        # The secret prefix keeps attackers from finding two texts with one hash. Without it "41" and the
        # character that has the same two bytes would collide, and with PYTHONHASHSEED hashes are predictable.
        self._key = secrets.token_hex(16)
        self._recent: set[int] = set()
        self._older: set[int] = set()

    def __call__(self, text: str) -> str:
        """Returns the text after ``replace``."""
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
