import copy
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, JsonValue

from filters.base import AnswerFilter, Context, Spoken


class Interruptable(AnswerFilter):
    """Say whether the caller may interrupt the answer, as Agora understands it.

    The event stands before all others of a stream, where alone it counts; whole answers have no place for
    it. While an answer may not be interrupted, what the caller says waits until it has been spoken.
    """

    value: bool
    """Whether the answer may be interrupted."""

    tts_params: dict[str, JsonValue] = Field(default_factory=dict)
    """How the voice shall sound for this answer; what the vendor's voice does not know is ignored."""

    spoken: ClassVar[tuple[Spoken, ...]] = (
        Spoken(
            "The words stay",
            {"value": False},
            before=["This call ", "is recorded."],
            after="This call is recorded.",
        ),
        Spoken(
            "Nor does a voice change them",
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
