"""Rewriting of text while it streams, with the same result wherever the text is cut."""

import re
from abc import ABC, abstractmethod
from typing import Any, Protocol

from filters.base import Delta
from filters.message import is_text

# How many characters of earlier text the rules may look back at.
_REMEMBERED = 2
_PIECE = 100_000


class Undecided(Exception):
    """Raised where a rule must see more of the text."""


class Arriving:
    """The text that has arrived. A rule that reads past its end is run again when more has arrived.

    So each decision depends only on the characters that were read, and later text cannot change it.
    """

    __slots__ = ("_before", "_ended", "text")

    def __init__(self, text: str, before: str, *, ended: bool) -> None:
        self.text = text
        self._before = before
        self._ended = ended

    def at(self, i: int) -> str:
        """The character at ``i``; empty after the end of the whole text. Raises Undecided."""
        if i < len(self.text):
            return self.text[i]
        if self._ended:
            return ""
        raise Undecided

    def before(self, i: int) -> str:
        """The character before ``i``; empty at the beginning of the whole text."""
        return self.text[i - 1] if i else self._before[-1:]

    def begins(self, i: int, words: str) -> bool:
        """Whether the text at ``i`` begins with ``words``, which are in lower case. Raises Undecided.

        Case is ignored.
        """
        return all(self.at(i + n).lower() == letter for n, letter in enumerate(words))

    def last(self, i: int) -> str:
        """The two characters before ``i``, which rules for the next piece may look back at."""
        return (self._before + self.text[max(0, i - _REMEMBERED) : i])[-_REMEMBERED:]

    def past(self, run: re.Pattern[str], i: int) -> int:
        """The end of a run that begins at ``i``, or ``i``. Raises Undecided.

        ``run`` must be one set of characters, repeated at most a given number of times: so held-back text is
        limited.
        """
        match = run.match(self.text, i)
        end = match.end() if match else i
        if end >= len(self.text) and not self._ended:
            raise Undecided
        return end


class Rewriter(ABC):
    """A text step that holds back the text about which its rules cannot decide yet."""

    def __init__(self) -> None:
        self._pending = ""
        self._before = ""

    def feed(self, text: str) -> str:
        """Returns the text that is decided, rewritten; the very same object where nothing changes."""
        if not text:
            return text
        if not self._pending and self._is_plain(text):
            self._before = (self._before + text[-_REMEMBERED:])[-_REMEMBERED:]
            return text
        return self._rewrite(self._pending + text, ended=False)

    def close(self) -> str:
        """Returns the rest of the text, rewritten."""
        return self._rewrite(self._pending, ended=True)

    @abstractmethod
    def _is_plain(self, text: str) -> bool:
        """Whether no rule applies to a text that follows the text so far."""

    @abstractmethod
    def _step(self, arriving: Arriving, i: int) -> tuple[int, str]:
        """Returns the next index, and the output for the text from ``i`` up to it.

        Raises Undecided before it changes any state. A step that returns ``i`` itself must change the state,
        so that the next one does something else.
        """

    def _rewrite(self, text: str, *, ended: bool) -> str:
        arriving = Arriving(text, self._before, ended=ended)
        output, i = [], 0
        try:
            while i < len(text):
                i, words = self._step(arriving, i)
                output.append(words)
        except Undecided:
            pass
        self._pending = text[i:]
        self._before = arriving.last(i)
        return "".join(output)


class TextStep(Protocol):
    """Rewrites text that arrives in pieces; the whole result is the same wherever the text is cut."""

    def feed(self, text: str) -> str:
        """Returns the text that is decided, rewritten; the very same object where nothing changes."""
        ...

    def close(self) -> str:
        """Returns the text that was held back."""
        ...


class TextStage:
    """A stage that runs a delta's ``content`` through text steps, also the text parts of a list."""

    def __init__(self, *steps: TextStep) -> None:
        self._steps = steps

    def feed(self, delta: Delta) -> Delta:
        """Returns the delta with rewritten content; the very same object where nothing changes."""
        content = delta.get("content")
        if not content:
            return delta
        rewritten = self._rewrite(content)
        return delta if rewritten is content or rewritten == content else {**delta, "content": rewritten}

    def close(self) -> Delta:
        """Returns a delta with the text that was held back; empty if there is none."""
        text = ""
        for step in self._steps:
            text = (step.feed(text) if text else "") + step.close()
        return {"content": text} if text else {}

    def _rewrite(self, content: Any) -> Any:
        if isinstance(content, str):
            if len(content) > _PIECE:  # a search in all of it would block the event loop
                pieces = (content[start : start + _PIECE] for start in range(0, len(content), _PIECE))
                return "".join(map(self._rewrite, pieces))
            for step in self._steps:
                content = step.feed(content)
            return content
        if not isinstance(content, list):
            return content
        return [
            {**part, "text": self._rewrite(part["text"])}
            if isinstance(part, dict) and is_text(part)
            else part
            for part in content
        ]
