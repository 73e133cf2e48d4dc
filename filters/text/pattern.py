"""Patterns that a user writes, and replacement in texts of which most were searched a turn ago.

The patterns run on RE2, whose time is linear in the text whatever the pattern.
"""

import secrets
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from pydantic import AfterValidator

_GENERATION = 32_768
# While a text is hashed, up to a millisecond for one so long, nothing else runs.
_LONGEST = 1_000_000


def compiled(pattern: str) -> Any:
    """A pattern made ready, used as the standard library's are. Raises ValueError with what is wrong."""
    import re2  # type: ignore[import-untyped]  # noqa: PLC0415 - two megabytes, for those who write patterns

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
"""An option that holds a pattern; a faulty one is refused with what is wrong with it."""


class Bounded:
    """A pattern whose matches have at most ``longest`` characters, so that a stream need not wait for more.

    Where a match would have more, as many are one match if the pattern allows it, and the rest is looked at
    anew.
    """

    def __init__(self, pattern: str, longest: int) -> None:
        self._pattern = compiled(pattern)
        self.longest = longest

    def spans(self, text: str, start: int) -> Iterator[tuple[int, int]]:
        """Where the matches from ``start`` on begin and end, in order; empty ones are none."""
        text = encodable(text)
        while start < len(text):
            begin, end = self._next(text, start)
            if begin < end:
                yield begin, end
            start = end

    def _next(self, text: str, start: int) -> tuple[int, int]:
        """The next match; where there is none, an empty span from which to look on.

        The window holds a whole match from wherever in its first half it may begin.
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
    """The text with each half character replaced by one whole: RE2 reads UTF-8, which has no halves."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text


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
