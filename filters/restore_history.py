from typing import ClassVar

from filters.base import Context, Example, Messages, RequestFilter, Snapshot
from filters.message import Message

_SYSTEM = ("system", "developer")


class RestoreHistory(RequestFilter):
    """Bring back what the engine no longer replays and memory still holds.

    Engines send a window of the conversation; what has slid out of it is lost to the model. With memory, the
    turns before the window come back in their place: behind the client's system messages, in order, as they
    were heard, tool calls together with their results. Without memory, or for a call without a session, the
    step does nothing. Put it behind ``repair_history``.
    """

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
            "Without memory nothing changes",
            {},
            before=[{"role": "user", "content": "Hi"}],
            after=[{"role": "user", "content": "Hi"}],
        ),
    )

    # What comes back the second time stands there already.
    idempotent: ClassVar[bool] = False

    def apply(self, messages: Messages, context: Context) -> Messages:
        """The messages, with what was dropped behind the leading system messages."""
        dropped = context.memory.dropped
        if not dropped:
            return messages
        start = next((i for i, message in enumerate(messages) if message.role not in _SYSTEM), len(messages))
        return [*messages[:start], *dropped, *messages[start:]]
