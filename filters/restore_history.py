from typing import ClassVar

from pydantic import Field

from filters.base import Context, Example, Messages, RequestFilter, Snapshot
from filters.message import SYSTEM, Message
from filters.tool_groups import STUB, Unanswered, close_groups

_CALLS = [{"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]


class RestoreHistory(RequestFilter):
    """Bring back what the engine no longer replays and memory still holds.

    Engines send a window of the conversation; what has slid out of it is lost to the model. With memory, the
    turns before the window come back in their place: behind the client's system messages, in order, as they
    were heard, tool calls together with their results; a call that has none is given one, for it will not be
    answered any more. Without memory, or for a call without a session, the step does nothing. Put it behind
    ``repair_history``, with the same words for a missing result: then a turn comes back as it went.
    """

    unanswered: Unanswered = "stub"
    """What becomes of a tool call that comes back and has no result: it gets one, or it goes."""

    stub: str = Field(default=STUB, min_length=1)
    """What such a call is answered with."""

    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            "Memory holds a turn that the engine has dropped",
            {},
            before=[
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "And what is my name?"},
            ],
            after=[
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "I am Ann."},
                {"role": "assistant", "content": "Hello, Ann."},
                {"role": "user", "content": "And what is my name?"},
            ],
            context=Context(
                now=0.0,
                memory=Snapshot(
                    dropped=(
                        Message(role="user", content="I am Ann."),
                        Message(role="assistant", content="Hello, Ann."),
                    )
                ),
            ),
        ),
        Example(
            "A tool call that was never answered",
            {},
            before=[{"role": "user", "content": "Never mind."}],
            after=[
                {"role": "user", "content": "Is it raining?"},
                {"role": "assistant", "content": None, "tool_calls": _CALLS},
                {
                    "role": "tool",
                    "tool_call_id": "call_1",
                    "content": "No result: the call was not completed.",
                },
                {"role": "user", "content": "Never mind."},
            ],
            context=Context(
                now=0.0,
                memory=Snapshot(
                    dropped=(
                        Message(role="user", content="Is it raining?"),
                        Message(role="assistant", content=None, tool_calls=_CALLS),
                    )
                ),
            ),
        ),
        Example(
            "Without memory nothing changes",
            {},
            before=[{"role": "user", "content": "Hi"}],
            after=[{"role": "user", "content": "Hi"}],
        ),
    )

    # A second application would restore the same turns again.
    idempotent: ClassVar[bool] = False

    def apply(self, messages: Messages, context: Context) -> Messages:
        """Returns the messages, with the dropped turns after the leading system messages."""
        dropped = context.memory.dropped
        if not dropped:
            return messages
        start = next((i for i, message in enumerate(messages) if message.role not in SYSTEM), len(messages))
        whole = close_groups(dropped, self.stub if self.unanswered == "stub" else None)
        return [*messages[:start], *whole, *messages[start:]]
