"""Rewrites text while it streams, by rules whose result does not depend on how the text is cut."""

import re
from abc import ABC, abstractmethod
from typing import Any, Protocol

from filters.base import Delta
from filters.message import is_text

# How many of the characters already returned a rule may look back at.
_REMEMBERED = 2
_PIECE = 100_000


class Undecided(Exception):
    """Raised by a rule that needs more of the text."""


class Arriving:
    """The text that has arrived. A rule that reads past its end is called again when more text arrives.

    A decision thus depends only on characters that the rule has read, and more text cannot change it.
    """

    __slots__ = ("_before", "_ended", "text")

    def __init__(self, text: str, before: str, *, ended: bool) -> None:
        self.text = text
        self._before = before
        self._ended = ended

    def at(self, i: int) -> str:
        """Returns the character at ``i``; empty after the end of all text. Raises Undecided."""
        if i < len(self.text):
            return self.text[i]
        if self._ended:
            return ""
        raise Undecided

    def before(self, i: int) -> str:
        """Returns the character before ``i``; empty at the beginning of all text."""
        return self.text[i - 1] if i else self._before[-1:]

    def begins(self, i: int, words: str) -> bool:
        """Whether the text has these lower-case words at ``i``, in any case. Raises Undecided."""
        return all(self.at(i + n).lower() == letter for n, letter in enumerate(words))

    def last(self, i: int) -> str:
        """Returns the two characters before ``i``, which a rule may need with a later piece of text."""
        return (self._before + self.text[max(0, i - _REMEMBERED) : i])[-_REMEMBERED:]

    def past(self, run: re.Pattern[str], i: int) -> int:
        """Returns the end of a run that begins at ``i``. Raises Undecided.

        ``run`` repeats one set of characters a limited number of times, which limits what is held back.
        """
        match = run.match(self.text, i)
        end = match.end() if match else i
        if end >= len(self.text) and not self._ended:
            raise Undecided
        return end


class Rewriter(ABC):
    """A text step that holds back what its rules cannot decide yet."""

    def __init__(self) -> None:
        self._pending = ""
        self._before = ""

    def feed(self, text: str) -> str:
        """Returns the text that is decided; the same object if nothing changes."""
        if not text:
            return text
        if not self._pending and self._is_plain(text):
            self._before = (self._before + text[-_REMEMBERED:])[-_REMEMBERED:]
            return text
        return self._rewrite(self._pending + text, ended=False)

    def close(self) -> str:
        """Returns the text that was held back, rewritten."""
        return self._rewrite(self._pending, ended=True)

    @abstractmethod
    def _is_plain(self, text: str) -> bool:
        """Whether no rule changes a text that follows what was returned so far."""

    @abstractmethod
    def _step(self, arriving: Arriving, i: int) -> tuple[int, str]:
        """Returns the end of the next piece of text from ``i`` on, and the words that replace it.

        A step with its end at ``i`` must change the state, so that the next one proceeds. Raises Undecided
        before any change of state.
        """

    def _rewrite(self, text: str, *, ended: bool) -> str:
        arriving = Arriving(text, self._before, ended=ended)
        pieces, i = [], 0
        try:
            while i < len(text):
                i, words = self._step(arriving, i)
                pieces.append(words)
        except Undecided:
            pass
        self._pending = text[i:]
        self._before = arriving.last(i)
        return "".join(pieces)


class TextStep(Protocol):
    """Rewrites text that arrives in pieces; the whole result does not depend on how it was cut."""

    def feed(self, text: str) -> str:
        """Returns the text that is decided; the same object if nothing changes."""
        ...

    def close(self) -> str:
        """Returns the text that was held back, rewritten."""
        ...


class TextStage:
    """A stage that rewrites the ``content`` of deltas by text steps, also in the text parts of a list."""

    def __init__(self, *steps: TextStep) -> None:
        self._steps = steps

    def feed(self, delta: Delta) -> Delta:
        """Returns the delta with its words rewritten; the same object if they stay."""
        content = delta.get("content")
        if not content:
            return delta
        text = self._rewrite(content)
        return delta if text is content or text == content else {**delta, "content": text}

    def close(self) -> Delta:
        """Returns a delta with the words that were held back; empty if there are none."""
        text = ""
        for step in self._steps:
            text = (step.feed(text) if text else "") + step.close()
        return {"content": text} if text else {}

    def _rewrite(self, content: Any) -> Any:
        if isinstance(content, str):
            if len(content) > _PIECE:  # searching all of it at once would block other threads
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
