import re
from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar

from pydantic import Field

from turnkeeper import Context, Example, Messages, RequestFilter


class Glossary(RequestFilter):
    """Correct words that speech recognition gets wrong, such as the name of your product.

    Whole words in the caller's messages are replaced, in upper and lower case alike.
    """

    words: Mapping[str, str] = Field(min_length=1)
    """What is heard, and what is meant: ``{turn keeper: Turnkeeper}``."""

    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            "The product's name",
            {"words": {"turn keeper": "Turnkeeper"}},
            before=[
                {"role": "user", "content": "Does Turn Keeper remember me?"},
                {"role": "assistant", "content": "Turn keeper does."},
            ],
            after=[
                {"role": "user", "content": "Does Turnkeeper remember me?"},
                {"role": "assistant", "content": "Turn keeper does."},
            ],
        ),
    )

    @cached_property
    def _heard(self) -> re.Pattern[str]:
        words = sorted(self.words, key=len, reverse=True)
        return re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})\b", re.IGNORECASE)

    @cached_property
    def _meant(self) -> dict[str, str]:
        return {heard.lower(): meant for heard, meant in self.words.items()}

    def apply(self, messages: Messages, context: Context) -> Messages:
        """The messages, with the words that were meant."""
        return [
            message.saying(self._corrected(message.text))
            if message.role == "user" and self._heard.search(message.text)
            else message
            for message in messages
        ]

    def _corrected(self, text: str) -> str:
        return self._heard.sub(lambda heard: self._meant.get(heard[0].lower(), heard[0]), text)
