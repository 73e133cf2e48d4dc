from typing import Literal

from pydantic import BaseModel, ConfigDict, field_validator

from filters.base import RequestFilter


class Voice(BaseModel):
    model_config = ConfigDict(extra="forbid")

    volume: float = 1.0


class Shout(RequestFilter):
    word: str
    roles: tuple[Literal["user", "assistant"], ...] = ("user",)
    voice: Voice | None = None

    @field_validator("word")
    @classmethod
    def _is_short(cls, word):
        if len(word) > 5:
            raise ValueError(f"{word!r} is too long")
        return word

    def apply(self, messages, context):
        return messages
