import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from filters.base import Context, Example, Messages, RequestFilter
from filters.message import Message, Role
from filters.option_types import Timezone, template_with, time_zone

_DIRECTIVE = re.compile(r"%(-?.?)", re.DOTALL)
_KNOWN = frozenset("aAbBcdfGHIjmMpSuUVwWxXyYzZ%") | {f"-{letter}" for letter in "dHIjmMSUWy"}
_FINER_THAN_A_MINUTE = frozenset("cSX") | {"-S"}
_YEAR_10000 = 253402300800.0
_PREFIXES_KEPT = 4096


def _is_format(text: str) -> str:
    directives = _DIRECTIVE.findall(text)
    unknown = [directive for directive in directives if directive not in _KNOWN]
    if unknown:
        raise ValueError(f"'%{unknown[0]}' is not a directive of strftime")
    if set(directives) <= {"%"}:
        raise ValueError("the format contains no directive of strftime, such as %H or %M")
    datetime.now(UTC).strftime(text)  # not every platform knows every directive
    return text


class TimestampPrefix(RequestFilter):
    """Put the time at which something was said before its words.

    A message without words or without a valid timestamp stays unchanged. Timestamps may be seconds or
    milliseconds since 1970; their size tells which. Models tend to say prefixes aloud in their own answers:
    use them for the user's messages only, and explain them in the system prompt.
    """

    idempotent: ClassVar[bool] = False

    format: Annotated[str, AfterValidator(_is_format)] = "%H:%M"
    """The format of the time (strftime)."""

    timezone: Timezone = "UTC"
    """The time zone of the time, as an IANA name such as ``Europe/Berlin``."""

    roles: tuple[Role, ...] = Field(default=("user",), min_length=1)
    """Roles whose messages get a prefix."""

    sources: tuple[str, ...] = ()
    """Prefix only messages with one of these values of ``metadata.source``. Empty: all."""

    relative: bool = False
    """Whether the time is counted from the first timestamp (``+02:05``); ``format`` is then ignored."""

    template: Annotated[str, template_with("time", required={"time"})] = "[{time}] "
    """The prefix; ``{time}`` is filled in."""

    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            "The caller's clock",
            {"timezone": "Asia/Tokyo"},
            before=[
                {"role": "assistant", "content": "Hello!", "timestamp": 1678901234000},
                {"role": "user", "content": "Is it late?", "timestamp": 1678901235000},
                {"role": "user", "content": "Hello?"},
            ],
            after=[
                {"role": "assistant", "content": "Hello!", "timestamp": 1678901234000},
                {"role": "user", "content": "[02:27] Is it late?", "timestamp": 1678901235000},
                {"role": "user", "content": "Hello?"},
            ],
        ),
        Example(
            "Time since the start of the conversation",
            {"relative": True, "template": "({time}) "},
            before=[
                {"role": "assistant", "content": "Hello!", "timestamp": 1678901234},
                {"role": "user", "content": "Hi.", "timestamp": 1678901236},
                {"role": "user", "content": "Still there?", "timestamp": 1678901359},
            ],
            after=[
                {"role": "assistant", "content": "Hello!", "timestamp": 1678901234},
                {"role": "user", "content": "(+00:02) Hi.", "timestamp": 1678901236},
                {"role": "user", "content": "(+02:05) Still there?", "timestamp": 1678901359},
            ],
        ),
    )

    def apply(self, messages: Messages, context: Context) -> Messages:
        """Returns the messages, with the time before the words."""
        prefix_at = self._since_start(messages, context) if self.relative else self._clock
        timed: list[Message] | None = None
        for i, message in enumerate(messages):
            if message.role not in self.roles or not message.content:
                continue
            if self.sources and message.source not in self.sources:
                continue
            seconds = message.seconds
            prefix = None if seconds is None else prefix_at(seconds)
            if prefix is not None:
                timed = timed or list(messages)
                timed[i] = message.prefixed(prefix)
        return timed or messages

    def _clock(self, seconds: float) -> str | None:
        if not _is_time(seconds):
            return None
        return self._prefix_of(seconds // self._step * self._step if self._step else seconds)

    @cached_property
    def _step(self) -> int:
        """How many seconds share one prefix; 0 if the format has fractions of a second."""
        directives = frozenset(_DIRECTIVE.findall(self.format))
        if "f" in directives:
            return 0
        return 1 if directives & _FINER_THAN_A_MINUTE else 60

    @cached_property
    def _prefix_of(self) -> Callable[[float], str | None]:
        zone = time_zone(self.timezone)

        @lru_cache(maxsize=_PREFIXES_KEPT)
        def prefix_of(seconds: float) -> str | None:
            try:
                time = datetime.fromtimestamp(seconds, zone).strftime(self.format)
            except (ValueError, OverflowError, OSError):  # the last hours of 9999, far in the east
                return None
            return self.template.format(time=time)

        return prefix_of

    def _since_start(self, messages: Messages, context: Context) -> Callable[[float], str | None]:
        times = (message.seconds for message in messages)
        first = next((seconds for seconds in times if seconds is not None and _is_time(seconds)), None)
        starts = [s for s in (context.memory.began, first) if s is not None and _is_time(s)]
        start = min(starts, default=0.0)

        def prefix(seconds: float) -> str | None:
            if not _is_time(seconds):
                return None
            minutes, rest = divmod(max(0, int(seconds - start)), 60)
            return self.template.format(time=f"+{minutes:02}:{rest:02}")

        return prefix


def _is_time(seconds: float) -> bool:
    return 0 <= seconds < _YEAR_10000
