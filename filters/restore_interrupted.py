from typing import Annotated, ClassVar, Literal

from filters.base import Context, Example, Messages, RequestFilter
from filters.letters import unheard
from filters.message import Message
from filters.option_types import template_with


class RestoreInterrupted(RequestFilter):
    """Tell the model how much of an interrupted answer the caller heard.

    Voice platforms replay only the spoken part of an interrupted answer, and the model takes it for the
    whole. This step works on assistant messages with ``metadata.interrupted``. The unheard part is what
    follows the spoken words in ``metadata.original``; case, punctuation and spaces may differ, and a word
    that was cut in the middle counts as unheard. Put the step before ``merge_consecutive``, which joins
    messages.
    """

    idempotent: ClassVar[bool] = False

    show: Literal["heard", "original", "both"] = "both"
    """What the model sees: the spoken words, the whole generated answer, or both by ``wording``."""

    wording: Annotated[str, template_with("heard", "unheard", required={"unheard"})] = (
        "{heard} [interrupted here; the caller did not hear: {unheard}]"
    )
    """The text for both; ``{heard}`` and ``{unheard}`` are filled in."""

    wording_without_rest: Annotated[str, template_with("heard")] = "{heard} [interrupted]"
    """The text if no part is unheard, or the unheard part is unknown; ``{heard}`` is filled in."""

    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            "The unheard rest is marked",
            {},
            before=[
                {
                    "role": "assistant",
                    "content": "Why did the scarecrow ",
                    "metadata": {"interrupted": True, "original": "Why did the scarecrow win an award?"},
                },
                {"role": "user", "content": "Tell me a story instead."},
            ],
            after=[
                {
                    "role": "assistant",
                    "content": "Why did the scarecrow "
                    "[interrupted here; the caller did not hear: win an award?]",
                    "metadata": {"interrupted": True, "original": "Why did the scarecrow win an award?"},
                },
                {"role": "user", "content": "Tell me a story instead."},
            ],
        ),
        Example(
            "The unheard part is unknown",
            {"wording_without_rest": "{heard}… (the caller broke in)"},
            before=[{"role": "assistant", "content": "Your balance", "metadata": {"interrupted": True}}],
            after=[
                {
                    "role": "assistant",
                    "content": "Your balance… (the caller broke in)",
                    "metadata": {"interrupted": True},
                }
            ],
        ),
        Example(
            "The whole generated answer",
            {"show": "original"},
            before=[
                {
                    "role": "assistant",
                    "content": "The code is",
                    "metadata": {"interrupted": True, "original": "The code is 4711."},
                }
            ],
            after=[
                {
                    "role": "assistant",
                    "content": "The code is 4711.",
                    "metadata": {"interrupted": True, "original": "The code is 4711."},
                }
            ],
        ),
    )

    def apply(self, messages: Messages, context: Context) -> Messages:
        """Returns the messages, with interrupted answers shown as ``show`` says."""
        if self.show == "heard":
            return messages
        restored: list[Message] | None = None
        for i, message in enumerate(messages):
            if (
                message.role == "assistant"
                and message.interrupted
                and (words := self._words(message)) is not None
            ):
                restored = restored or list(messages)
                restored[i] = message.saying(words)
        return restored or messages

    def _words(self, message: Message) -> str | None:
        """Returns the words of an interrupted answer that the model is shown; ``None`` to keep its own."""
        heard, original = message.text.strip(), (message.original or "").strip()
        if self.show == "original" or not (heard or original):
            return original or None
        rest = unheard(message.text, original)
        words = self.wording if rest else self.wording_without_rest
        return words.format(heard=heard, unheard=rest).strip()
