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

    It goes out as words of the answer, before the model's, and cannot be taken back; the model's chunks then
    bear its id. The caller hears it and an engine replays it, so that the answer is remembered with it, and
    ``original`` begins with it as well where the caller cut the answer short.
    """

    after: Annotated[
        float,
        BeforeValidator(seconds, json_schema_input_type=DurationText),
        AfterValidator(_is_bearable),
        PlainSerializer(as_duration, when_used="json"),
    ]
    """How long the first word may take, from ``100ms`` to ``10s``."""

    phrases: tuple[Annotated[str, Field(max_length=200), AfterValidator(_is_said)], ...] = Field(min_length=1)
    """What is said, one phrase at a time; the second in which the turn began tells which."""

    spoken: ClassVar[tuple[Spoken, ...]] = (
        Spoken(
            "The model's own words stay",
            {"after": "800ms", "phrases": ["One moment."]},
            before=["It is ", "noon."],
            after="It is noon.",
        ),
        Spoken(
            "With several phrases, too",
            {"after": "1.5s", "phrases": ["Let me see.", "Well,"]},
            before=["It is noon."],
            after="It is noon.",
        ),
    )

    def phrase(self, context: Context) -> str:
        """Returns the phrase for this turn, with a space that separates it from the model's words."""
        return self.phrases[int(context.now) % len(self.phrases)].strip() + " "
