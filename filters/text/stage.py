"""The words of one choice on their way through the steps of a filter; all else passes them by."""

from collections.abc import Sequence
from typing import Any, Protocol

from filters.base import Delta
from filters.message import is_text


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
        said = self._said(content)
        return delta if said is content or said == content else {**delta, "content": said}

    def close(self) -> Delta:
        """The words that were held back."""
        text = ""
        for step in self._steps:
            text = (step.feed(text) if text else "") + step.close()
        return {"content": text} if text else {}

    def _said(self, content: Any) -> Any:
        if isinstance(content, str):
            for step in self._steps:
                content = step.feed(content)
            return content
        return self._parts(content) if isinstance(content, list) else content

    def _parts(self, parts: Sequence[Any]) -> list[Any]:
        return [
            {**part, "text": self._said(part["text"])} if isinstance(part, dict) and is_text(part) else part
            for part in parts
        ]
