from typing import ClassVar

from pydantic import Field

from filters.base import Context, Example, Messages, RequestFilter, Snapshot
from filters.message import SYSTEM, Message
from filters.tool_groups import STUB, Unanswered, close_groups

_CALLS = [{"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]


class RestoreHistory(RequestFilter):
    """Bring back turns that the voice platform no longer replays, from memory.

    Voice platforms send a window of the conversation, and the model does not see older turns. With memory,
    these turns are put between the client's system messages and the window: in order, as the caller heard
    them, tool calls with their results. Without memory, or for a request without a session, the step does
    nothing. Put it after ``repair_history`` and give both the same ``unanswered`` and ``stub``; a turn then
    comes back exactly as it was sent.
    """

    unanswered: Unanswered = "stub"
    """A tool call that comes back without a result: ``stub`` adds a result, ``drop`` removes the call."""

    stub: str = Field(default=STUB, min_length=1)
    """The text of an added result."""

    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            "Memory holds a turn that the voice platform has dropped",
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
