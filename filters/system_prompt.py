from datetime import datetime
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from filters.base import Context, Example, Messages, RequestFilter
from filters.injection import instructions, one_line
from filters.message import Message
from filters.option_types import (
    STATE,
    Timezone,
    Whole,
    fill_template,
    names_in,
    state_text,
    template_with,
    time_zone,
)

_KNOWN = ("user", "session", "tenant", "date", "weekday", STATE)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class SystemPrompt(RequestFilter):
    """Give the model a system prompt, beside the client's own or in its place.

    The client's own prompt is the system and developer messages at the start of the conversation. Injected
    facts and summaries are not a part of it and always stay. ``{user}``, ``{session}`` and ``{tenant}`` are
    filled in from the request, each as one line of at most ``max_length`` characters. ``{state.plan}`` is the
    value that a client stores with the session under ``plan``; it is missing if memory does not answer. There
    is no time of day, because a prompt that changes in each turn makes the model read the whole conversation
    again; use ``timestamp_prefix`` instead. ``{date}`` and ``{weekday}`` change it once, at midnight. An
    empty conversation stays empty.
    """

    keeps_system: ClassVar[bool] = False

    text: Annotated[str, template_with(*_KNOWN)] = Field(min_length=1)
    """The prompt, with names in braces; write ``{{`` for a brace."""

    mode: Literal["prepend", "append", "replace", "if_missing"] = "prepend"
    """Where it stands: before the client's own, after it, in its place, or only if there is none."""

    role: Literal["system", "developer"] = "system"
    """The role of the prompt."""

    timezone: Timezone = "UTC"
    """The time zone of the date, as an IANA name such as ``Europe/Berlin``."""

    unknown: str = "unknown"
    """The text for a value that is missing."""

    max_length: Annotated[Whole, Field(ge=1)] = 64
    """The most characters of each value."""

    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            "Before the client's own prompt",
            {"text": "It is {weekday}, {date}. You speak with {user}.", "timezone": "Asia/Tokyo"},
            before=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}],
            after=[
                {"role": "system", "content": "It is Thursday, 2023-03-16. You speak with ann obey."},
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Hi."},
            ],
            context=Context(now=1678901234.0, user="ann\nobey"),
        ),
        Example(
            "In place of the client's own prompt",
            {"text": "You are a waiter.", "mode": "replace", "role": "developer"},
            before=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}],
            after=[{"role": "developer", "content": "You are a waiter."}, {"role": "user", "content": "Hi."}],
        ),
        Example(
            "Only if the client has no prompt",
            {"text": "You are a waiter.", "mode": "if_missing"},
            before=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi."}],
            after=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi."}],
        ),
        Example(
            "After the client's own prompt",
            {"text": "Never promise a discount.", "mode": "append"},
            before=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}],
            after=[
                {"role": "system", "content": "Be brief."},
                {"role": "system", "content": "Never promise a discount."},
                {"role": "user", "content": "Hi."},
            ],
        ),
    )

    def apply(self, messages: Messages, context: Context) -> Messages:
        """Returns the messages with the prompt placed by ``mode``; an equal prompt there is not repeated."""
        system = instructions(messages)
        if not messages or (system and self.mode == "if_missing"):
            return messages
        values = {
            name: one_line(getattr(context, name) or "", self.max_length) or self.unknown
            for name in self._names & {"user", "session", "tenant"}
        }
        if self._names & {"date", "weekday"}:
            today = datetime.fromtimestamp(context.now, time_zone(self.timezone))
            values |= {"date": today.date().isoformat(), "weekday": _DAYS[today.weekday()]}
        for name in self._names:
            if name.startswith(STATE):
                values[name] = (
                    one_line(state_text(context.memory.state, name), self.max_length) or self.unknown
                )
        prompt = Message(role=self.role, content=fill_template(self.text, values))
        if self.mode == "append":
            head = system if system[-1:] == [prompt] else [*system, prompt]
        elif self.mode == "prepend":
            head = system if system[:1] == [prompt] else [prompt, *system]
        else:
            head = [prompt]
        return messages if head == system else [*head, *messages[len(system) :]]

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(names_in(self.text))
