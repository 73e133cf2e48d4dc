"""Text rewritten while it streams, by rules for which it makes no difference where it is cut."""

import re
from abc import ABC, abstractmethod
from typing import Any, Protocol

from filters.base import Delta
from filters.message import is_text

# How many characters of what has been said are still looked back at.
_REMEMBERED = 2
_PIECE = 100_000


class Undecided(Exception):
    """A rule must see more of the text."""


class Arriving:
    """Text as far as it is there. A rule that reads past its end is asked again when more has come.

    What a rule decides thus rests on what it has read alone, and more text cannot prove it wrong.
    """

    __slots__ = ("_before", "_ended", "text")

    def __init__(self, text: str, before: str, *, ended: bool) -> None:
        self.text = text
        self._before = before
        self._ended = ended

    def at(self, i: int) -> str:
        """The character at ``i``; empty behind the end of all text. Raises Undecided."""
        if i < len(self.text):
            return self.text[i]
        if self._ended:
            return ""
        raise Undecided

    def before(self, i: int) -> str:
        """The character before ``i``; empty at the beginning of all text."""
        return self.text[i - 1] if i else self._before[-1:]

    def begins(self, i: int, words: str) -> bool:
        """Whether these words, which are in lower case, stand at ``i`` in whatever case. Raises Undecided."""
        return all(self.at(i + n).lower() == letter for n, letter in enumerate(words))

    def last(self, i: int) -> str:
        """The two characters before ``i``: what a later piece of text may still ask for."""
        return (self._before + self.text[max(0, i - _REMEMBERED) : i])[-_REMEMBERED:]

    def past(self, run: re.Pattern[str], i: int) -> int:
        """Where a run that begins at ``i`` is over. Raises Undecided.

        ``run`` repeats one set of characters, at most a given number of times: that bounds what is held back.
        """
        found = run.match(self.text, i)
        end = found.end() if found else i
        if end >= len(self.text) and not self._ended:
            raise Undecided
        return end


class Rewriter(ABC):
    """A text step that holds back what its rules cannot decide yet."""

    def __init__(self) -> None:
        self._pending = ""
        self._before = ""

    def feed(self, text: str) -> str:
        """What can be said already; the very same text where nothing changes."""
        if not text:
            return text
        if not self._pending and self._is_plain(text):
            self._before = (self._before + text[-_REMEMBERED:])[-_REMEMBERED:]
            return text
        return self._rewrite(self._pending + text, ended=False)

    def close(self) -> str:
        """What was held back."""
        return self._rewrite(self._pending, ended=True)

    @abstractmethod
    def _is_plain(self, text: str) -> bool:
        """Whether no rule has anything to say to a text that follows what has been said."""

    @abstractmethod
    def _step(self, arriving: Arriving, i: int) -> tuple[int, str]:
        """What is said for the text from ``i`` on, and up to where. Raises Undecided, nothing changed yet.

        A step that goes nowhere must change what the next one does.
        """

    def _rewrite(self, text: str, *, ended: bool) -> str:
        arriving = Arriving(text, self._before, ended=ended)
        said, i = [], 0
        try:
            while i < len(text):
                i, words = self._step(arriving, i)
                said.append(words)
        except Undecided:
            pass
        self._pending = text[i:]
        self._before = arriving.last(i)
        return "".join(said)


class TextStep(Protocol):
    """Text that arrives in pieces, rewritten. Where it was cut makes no difference to the whole."""

    def feed(self, text: str) -> str:
        """What can be said already; the very same text where nothing changes."""
        ...

    def close(self) -> str:
        """What was held back."""
        ...


class TextStage:
    """A stage that takes a delta's ``content`` through text steps, the text parts of a list included."""

    def __init__(self, *steps: TextStep) -> None:
        self._steps = steps

    def feed(self, delta: Delta) -> Delta:
        """The delta with its words rewritten; the very same object where they stay."""
        content = delta.get("content")
        if not content:
            return delta
        said = self._rewrite(content)
        return delta if said is content or said == content else {**delta, "content": said}

    def close(self) -> Delta:
        """The words that were held back."""
        text = ""
        for step in self._steps:
            text = (step.feed(text) if text else "") + step.close()
        return {"content": text} if text else {}

    def _rewrite(self, content: Any) -> Any:
        if isinstance(content, str):
            if len(content) > _PIECE:  # a search in all of it would let nothing else run
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
