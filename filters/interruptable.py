import copy
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, JsonValue

from filters.base import AnswerFilter, Context, Spoken


class Interruptable(AnswerFilter):
    """Tell Agora whether the caller may interrupt the answer.

    The event is sent before all others of a stream; an answer that is not streamed has no place for it. While
    an answer may not be interrupted, Agora processes the caller's words when it has been spoken.
    """

    value: bool
    """Whether the caller may interrupt the answer."""

    tts_params: dict[str, JsonValue] = Field(default_factory=dict)
    """Parameters of the voice for this answer; the voice vendor ignores those it does not support."""

    spoken: ClassVar[tuple[Spoken, ...]] = (
        Spoken(
            "The answer itself is unchanged",
            {"value": False},
            before=["This call ", "is recorded."],
            after="This call is recorded.",
        ),
        Spoken(
            "The same with parameters of the voice",
            {"value": True, "tts_params": {"speed": 1.2}},
            before=["Go on."],
            after="Go on.",
        ),
    )

    def first(self, context: Context) -> Mapping[str, Any]:
        """Returns Agora's metadata event."""
        metadata: dict[str, Any] = {"interruptable": self.value}
        if self.tts_params:
            metadata["tts_params"] = {"params": copy.deepcopy(self.tts_params)}
        return {
            "id": "custom_metadata",
            "object": "chat.completion.custom_metadata",
            "choices": [],
            "metadata": metadata,
        }
