from collections.abc import Mapping, Sequence
from itertools import chain, groupby
from typing import Any, ClassVar, Literal

import msgspec
from pydantic import Field

from filters.base import Context, Example, Messages, RequestFilter
from filters.injection import Injected
from filters.message import MARKS, Message


class MergeConsecutive(RequestFilter):
    """Merge consecutive messages of one speaker.

    Voice platforms split a sentence at every pause, and some models refuse two consecutive messages of one
    role. Texts are joined by ``separator``; messages with pictures or sound become one list of parts. Tool
    calls and their results are never merged, nor are messages with different ``name`` or different unknown
    fields, nor text from memory with words of the conversation. The merged message has the ``turn_id``,
    ``timestamp`` and ``metadata`` of the first one, so that only its end changes as the conversation goes on.
    Put steps that read these fields before this one.
    """

    roles: tuple[Literal["system", "developer", "user", "assistant"], ...] = Field(
        default=("user", "assistant"), min_length=1
    )
    """Roles whose messages are merged."""

    separator: str = "\n"
    """The text between two merged texts."""

    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            "A sentence with a pause in it",
            {"separator": " "},
            before=[
                {"role": "user", "content": "I'd like to book", "turn_id": 1},
                {"role": "user", "content": "a table for two.", "turn_id": 2},
                {"role": "assistant", "content": "For when?", "turn_id": 2},
            ],
            after=[
                {"role": "user", "content": "I'd like to book a table for two.", "turn_id": 1},
                {"role": "assistant", "content": "For when?", "turn_id": 2},
            ],
        ),
        Example(
            "Words and a picture",
            {},
            before=[
                {"role": "user", "content": "Look:"},
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}],
                },
            ],
            after=[
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "Look:"},
                        {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}},
                    ],
                },
            ],
        ),
    )

    def apply(self, messages: Messages, context: Context) -> Messages:
        """Returns the messages with runs of one speaker merged."""
        runs: list[list[Message]] = []
        for message in messages:
            if runs and self._goes_on(runs[-1][-1], message):
                runs[-1].append(message)
            else:
                runs.append([message])
        if len(runs) == len(messages):
            return messages
        return [run[0] if len(run) == 1 else self._merged(run) for run in runs]

    def _goes_on(self, earlier: Message, later: Message) -> bool:
        if earlier.role != later.role or later.role not in self.roles:
            return False
        if isinstance(earlier, Injected) or isinstance(later, Injected):
            return False
        if earlier.tool_calls or later.tool_calls or (earlier.name or None) != (later.name or None):
            return False
        return _has_content(earlier) and _has_content(later) and _unknown(earlier) == _unknown(later)

    def _merged(self, run: Sequence[Message]) -> Message:
        contents: list[Any] = [message.content for message in run if message.content]
        if all(isinstance(content, str) for content in contents):
            return msgspec.structs.replace(run[0], content=self.separator.join(contents))
        parts: list[dict[str, Any]] = []
        for kind, group in groupby(contents, type):
            if kind is str:
                parts.append({"type": "text", "text": self.separator.join(group)})
            else:
                parts += chain.from_iterable(group)
        return msgspec.structs.replace(run[0], content=parts)


def _unknown(message: Message) -> Mapping[str, Any]:
    return {name: value for name, value in message.others.items() if name not in MARKS}


def _has_content(message: Message) -> bool:
    """Whether a message has content, which alone can be merged."""
    return isinstance(message.content, str | list)
