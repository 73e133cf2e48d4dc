import re
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar, Self

import msgspec
from pydantic import BaseModel, ConfigDict, Field, model_validator

from filters.base import Context, Example, Messages, RequestFilter
from filters.message import Message, Role, is_text
from filters.text.pattern import OwnPattern, Replacer, compiled, encodable

_MAX_ADDED = 1_000_000
_ESCAPE = re.compile(r"\\(?:([0-9]{1,2})|(\\)|(.?))", re.DOTALL)


class Replacement(BaseModel):
    """A pattern and its replacement."""

    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True)

    pattern: OwnPattern
    """The text to look for, as a pattern of RE2."""

    by: str = Field(alias="with")
    r"""The replacement. ``\1`` is the match of the first group, ``\0`` the whole match, ``\\`` a ``\``."""

    @model_validator(mode="after")
    def _holds_its_groups(self) -> Self:
        groups = compiled(self.pattern).groups
        for number, backslash, other in _ESCAPE.findall(self.by):
            if number and int(number) > groups:
                raise ValueError(f"'with' names group {number}, and the pattern has {groups}")
            if not (number or backslash):
                raise ValueError(rf"'\{other}' in 'with' means nothing; write '\\' for a backslash")
        return self

    @cached_property
    def rewritten(self) -> Callable[[str], str]:
        """A function that replaces every match in a text; it returns the same object if there is none."""
        finditer, pieces = compiled(self.pattern).finditer, _pieces(self.by)

        def rewritten(text: str) -> str:
            parts, end, size = [], 0, 0
            for match in finditer(encodable(text)):
                replaced = [p if isinstance(p, str) else match[p] or "" for p in pieces]
                parts += [text[end : match.start()], *replaced]
                end = match.end()
                size += sum(map(len, replaced))
                if size > _MAX_ADDED:
                    raise ValueError(
                        f"the replacements of {self.pattern!r} in a text exceed {_MAX_ADDED} characters"
                    )
            return "".join([*parts, text[end:]]) if parts else text

        return rewritten


def _pieces(written: str) -> list[str | int]:
    """Returns the parts of a replacement: texts, and the numbers of groups."""
    pieces: list[str | int] = []
    end = 0
    for escape in _ESCAPE.finditer(written):
        pieces += [written[end : escape.start()], int(escape[1]) if escape[1] else "\\"]
        end = escape.end()
    return [*pieces, written[end:]]


class Rewrite(RequestFilter):
    r"""Replace texts by pattern: names that speech recognition gets wrong, words that a model should not see.

    The replacements run one after the other over each text. Patterns are those of RE2, which take time in
    proportion to the length of the text and have neither look-around nor back-references. ``\w``, ``\d`` and
    ``\b`` match ASCII only, ``\pL`` matches any letter, and ``(?i)`` at the start ignores case. A message
    that loses all its words stays as an empty message, and an empty part is removed: put this step before
    ``repair_history``, which removes empty messages.
    """

    idempotent: ClassVar[bool] = False
    keeps_system: ClassVar[bool] = False
    keeps_words: ClassVar[bool] = False

    replace: tuple[Replacement, ...] = Field(min_length=1)
    """The replacements in their order, such as ``[{pattern: "(?i)acne corp", with: "ACME Corp"}]``."""

    roles: tuple[Role, ...] = Field(default=("user",), min_length=1)
    """Roles whose messages are rewritten."""

    sources: tuple[str, ...] = ()
    """Rewrite only messages with one of these values of ``metadata.source``. Empty: all."""

    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            "A misheard name, and a changed order of words",
            {
                "replace": [
                    {"pattern": "(?i)acne corp", "with": "ACME Corp"},
                    {"pattern": r"\b([0-9]+) (EUR|USD)\b", "with": r"\2 \1"},
                ]
            },
            before=[
                {"role": "user", "content": "Did Acne Corp book 20 EUR?"},
                {"role": "assistant", "content": "Acne Corp booked 20 EUR."},
            ],
            after=[
                {"role": "user", "content": "Did ACME Corp book EUR 20?"},
                {"role": "assistant", "content": "Acne Corp booked 20 EUR."},
            ],
        ),
        Example(
            "Marks of one source only",
            {"replace": [{"pattern": r"^<[a-z]+> ?", "with": ""}], "sources": ["asr"]},
            before=[
                {"role": "user", "content": "<laughs> Yes!", "metadata": {"source": "asr"}},
                {"role": "user", "content": "<b> is bold.", "metadata": {"source": "message"}},
            ],
            after=[
                {"role": "user", "content": "Yes!", "metadata": {"source": "asr"}},
                {"role": "user", "content": "<b> is bold.", "metadata": {"source": "message"}},
            ],
        ),
    )

    @model_validator(mode="after")
    def _is_ready(self) -> Self:
        for replacement in self.replace:
            replacement.rewritten  # noqa: B018 - made now rather than in the first call
        return self

    def apply(self, messages: Messages, context: Context) -> Messages:
        """Returns the messages with all matches replaced."""
        result: list[Message] | None = None
        for i, message in enumerate(messages):
            if message.role not in self.roles or (self.sources and message.source not in self.sources):
                continue
            content = message.content
            if isinstance(content, list):
                parts = [self._part(part) for part in content]
                if any(new is not old for new, old in zip(parts, content, strict=True)):
                    content = [part for part in parts if part is not None]
            elif isinstance(content, str):
                content = self._text(content)
            if content is not message.content:
                result = result or list(messages)
                result[i] = msgspec.structs.replace(message, content=content)
        return result or messages

    def _part(self, part: dict[str, Any]) -> dict[str, Any] | None:
        """Returns a part with its matches replaced; ``None`` if no words are left."""
        if not is_text(part):
            return part
        text = self._text(part["text"])
        if text is part["text"]:
            return part
        return {**part, "text": text} if text else None

    @cached_property
    def _text(self) -> Callable[[str], str]:
        def rewritten(text: str) -> str:
            for replacement in self.replace:
                text = replacement.rewritten(text)
            return text

        return Replacer(rewritten)
