"""What a model may be told that is asked in the background: as calls are told it."""

from collections.abc import Sequence
from typing import Any

from filters.base import Context
from filters.message import Message
from filters.redact import Redact

_NOWHERE = Context(now=0.0)


class Discretion:
    """Redacts what was said as the steps of chains do."""

    def __init__(self, steps: Sequence[Redact] = ()) -> None:
        self._steps = steps

    def text(self, text: str, role: str = "user") -> str:
        """What somebody said, or what tells of it."""
        return self._shown(Message(role=role, content=text)).text if self._steps else text

    def calls(self, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What tools were called with."""
        shown = self._shown(Message(role="assistant", tool_calls=calls)).tool_calls
        return shown or []

    def _shown(self, message: Message) -> Message:
        for step in self._steps:
            (message,) = step.apply([message], _NOWHERE)
        return message
