"""Patterns that a user writes, and replacement in texts, most of which were searched a turn ago.

The patterns run on RE2, whose time is linear in the text whatever the pattern.
"""

import secrets
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from pydantic import AfterValidator

_GENERATION = 32_768
# Hashing a text of this length blocks the event loop for up to a millisecond.
_LONGEST = 1_000_000


def compiled(pattern: str) -> Any:
    """Compiles a pattern, to be used like one of ``re``; raises ValueError with the reason if that fails."""
    import re2  # type: ignore[import-untyped]  # noqa: PLC0415 - two megabytes, for those who write patterns

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(f"{pattern!r} is not a valid RE2 pattern: {_message(error)}") from None


def _is_pattern(pattern: str) -> str:
    compiled(pattern)
    return pattern


def _message(error: Exception) -> str:
    reason = error.args[0] if error.args else "unknown"
    text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
    return f"{text} (it has no look-around)" if "(?" in text else text


OwnPattern = Annotated[str, AfterValidator(_is_pattern)]
"""An option that is a pattern; the error for an invalid one gives the reason."""


class Bounded:
    """A pattern whose matches have at most ``longest`` characters, which bounds how long a stream waits.

    A longer match is cut to this length if the pattern allows it, and the search continues after it.
    """

    def __init__(self, pattern: str, longest: int) -> None:
        self._pattern = compiled(pattern)
        self.longest = longest

    def spans(self, text: str, start: int) -> Iterator[tuple[int, int]]:
        """Yields the begin and end of each match from ``start`` on, in order, without empty matches."""
        text = encodable(text)
        while start < len(text):
            begin, end = self._next(text, start)
            if begin < end:
                yield begin, end
            start = end

    def _next(self, text: str, start: int) -> tuple[int, int]:
        """Returns the next match, or an empty span at which the search continues.

        The window is large enough for any match that begins in its first half.
        """
        before = min(start, 1)
        window = text[start - before : start + 2 * self.longest + 1]
        match = self._pattern.search(window, before)
        if not match or match.start() - before >= self.longest:
            return start + self.longest, start + self.longest
        begin = match.start()
        if match.end() - begin > self.longest:
            match = self._pattern.match(window, begin, begin + self.longest)
        length = match.end() - begin if match else 0
        begin += start - before
        return begin + (length == 0), begin + max(length, 1)


def encodable(text: str) -> str:
    """Returns the text with ``?`` for each lone surrogate, which UTF-8, and so RE2, cannot represent."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text


class Replacer:
    """Calls ``replace`` for texts, and not again for one that it returned as the same object.

    At least the last 32,768 such texts of up to a million characters are remembered, and at most twice as
    many. Only a keyed hash of each is kept, and none of its words.
    """

    def __init__(self, replace: Callable[[str], str]) -> None:
        self._replace = replace
        # Nobody may choose a text that is taken for another one. "41" and the one character that consists of
        # the same two bytes have one hash, and anybody who knows PYTHONHASHSEED can compute hashes. A secret
        # prefix of characters of one byte prevents both.
        self._key = secrets.token_hex(16)
        self._recent: set[int] = set()
        self._older: set[int] = set()

    def __call__(self, text: str) -> str:
        """Returns the text with its matches replaced."""
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
