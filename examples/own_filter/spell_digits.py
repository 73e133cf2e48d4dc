import re
from typing import ClassVar

from pydantic import Field

from turnkeeper import AnswerFilter, Context, Delta, Spoken, Stage


class SpellDigits(AnswerFilter):
    """Have long numbers read out digit by digit, as one reads out a code.

    A voice makes "four thousand seven hundred and eleven" of 4711. With spaces between them it says the
    digits. A number is held back until something else follows it.
    """

    digits: int = Field(default=4, ge=2)
    """How many digits in a row make a number long."""

    spoken: ClassVar[tuple[Spoken, ...]] = (
        Spoken(
            "A code",
            {},
            before=["Your code is 47", "11, for 2 days."],
            after="Your code is 4 7 1 1, for 2 days.",
        ),
    )

    def open(self, context: Context) -> Stage:
        """A stage that holds back a number which may go on."""
        return _Spelling(re.compile(f"[0-9]{{{self.digits},}}"))


class _Spelling:
    def __init__(self, long: re.Pattern[str]) -> None:
        self._long = long
        self._held = ""

    def feed(self, delta: Delta) -> Delta:
        content = delta.get("content")
        if not isinstance(content, str) or not content:
            return delta
        text = self._held + content
        ended = text.rstrip("0123456789")
        self._held = text[len(ended) :]
        spelled = self._spelled(ended)
        return delta if spelled == content else {**delta, "content": spelled}

    def close(self) -> Delta:
        return {"content": self._spelled(self._held)} if self._held else {}

    def _spelled(self, text: str) -> str:
        return self._long.sub(lambda number: " ".join(number[0]), text)
