from typing import Annotated, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from filters.base import AnswerFilter, Context, Spoken
from filters.option_types import DURATION, as_duration, seconds

DurationText = Annotated[str, Field(pattern=DURATION)]

_SHORTEST, _LONGEST = 0.1, 10.0


def _is_bearable(after: float) -> float:
    if not _SHORTEST <= after <= _LONGEST:
        raise ValueError("write a duration from 100ms to 10s")
    return after


def _is_said(phrase: str) -> str:
    if not phrase.strip():
        raise ValueError("write words; an empty phrase fills no silence")
    return phrase


class Filler(AnswerFilter):
    """Say a phrase when the model's first word is late, so that the caller does not hear silence.

    The phrase is sent as the beginning of the answer and cannot be taken back; the model's chunks then have
    its id. The caller hears it and the voice platform replays it, so it is stored as a part of the answer,
    and of ``original`` if the caller interrupts.
    """

    after: Annotated[
        float,
        BeforeValidator(seconds, json_schema_input_type=DurationText),
        AfterValidator(_is_bearable),
        PlainSerializer(as_duration, when_used="json"),
    ]
    """How long to wait for the first word before the phrase is said, from ``100ms`` to ``10s``."""

    phrases: tuple[Annotated[str, Field(max_length=200), AfterValidator(_is_said)], ...] = Field(min_length=1)
    """The phrases, of which each answer gets one; the second at which the turn began selects it."""

    spoken: ClassVar[tuple[Spoken, ...]] = (
        Spoken(
            "The model is in time, and its words are unchanged",
            {"after": "800ms", "phrases": ["One moment."]},
            before=["It is ", "noon."],
            after="It is noon.",
        ),
        Spoken(
            "The same with several phrases",
            {"after": "1.5s", "phrases": ["Let me see.", "Well,"]},
            before=["It is noon."],
            after="It is noon.",
        ),
    )

    def phrase(self, context: Context) -> str:
        """Returns the phrase for this turn, with a space that separates it from the model's words."""
        return self.phrases[int(context.now) % len(self.phrases)].strip() + " "
