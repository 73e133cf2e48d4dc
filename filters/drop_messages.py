from typing import ClassVar, Self

from pydantic import model_validator

from filters.base import Context, Example, Messages, RequestFilter
from filters.message import Role, newest_user
from filters.tool_groups import with_results


class DropMessages(RequestFilter):
    """Drop messages by their source, their role, or both.

    A message is dropped if it meets every condition that you set. The newest message of the user always
    stays, because the model has to answer it. Results of a tool are dropped with their call and stay with
    it; their own role and source do not matter.
    """

    sources: tuple[str, ...] = ()
    """Drop messages with one of these values of ``metadata.source``, such as ``silence``. Empty: any."""

    roles: tuple[Role, ...] = ()
    """Drop messages with one of these roles. Empty: any."""

    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            "Silence prompts and failure messages",
            {"sources": ["silence", "llm_failure"]},
            before=[
                {"role": "user", "content": "One moment.", "metadata": {"source": "asr"}},
                {"role": "assistant", "content": "Are you still there?", "metadata": {"source": "silence"}},
                {"role": "assistant", "content": "Sorry, try again.", "metadata": {"source": "llm_failure"}},
                {"role": "user", "content": "Here I am.", "metadata": {"source": "asr"}},
            ],
            after=[
                {"role": "user", "content": "One moment.", "metadata": {"source": "asr"}},
                {"role": "user", "content": "Here I am.", "metadata": {"source": "asr"}},
            ],
        ),
        Example(
            "Both conditions must hold, and the newest words of the user stay",
            {"sources": ["command"], "roles": ["user"]},
            before=[
                {"role": "user", "content": "The door opened.", "metadata": {"source": "command"}},
                {"role": "assistant", "content": "Come in!", "metadata": {"source": "command"}},
                {"role": "user", "content": "The door closed.", "metadata": {"source": "command"}},
            ],
            after=[
                {"role": "assistant", "content": "Come in!", "metadata": {"source": "command"}},
                {"role": "user", "content": "The door closed.", "metadata": {"source": "command"}},
            ],
        ),
        Example(
            "A tool call is dropped with its results",
            {"roles": ["assistant"]},
            before=[
                {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function"}]},
                {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."},
                {"role": "user", "content": "Thanks!"},
            ],
            after=[{"role": "user", "content": "Thanks!"}],
        ),
    )

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if not (self.sources or self.roles):
            raise ValueError("say what to drop: 'sources', 'roles' or both")
        return self

    def apply(self, messages: Messages, context: Context) -> Messages:
        """Returns the messages that are not dropped."""
        sources, roles = self.sources, self.roles
        matching = {
            i
            for i, message in enumerate(messages)
            if (not sources or message.source in sources) and (not roles or message.role in roles)
        }
        if not matching:
            return messages
        gone = with_results(messages, matching - {newest_user(messages)})
        return [message for i, message in enumerate(messages) if i not in gone]
