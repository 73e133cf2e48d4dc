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

    The client's own are the system and developer messages with which the conversation begins; facts and
    summaries are none of them, and stay whatever becomes of it. ``{user}``, ``{session}`` and ``{tenant}``
    are those of the call, each as one line, cut at ``max_length``. There is no time of day: a prompt that
    differs from turn to turn makes the model read the whole conversation anew each time. With ``{date}`` and
    ``{weekday}`` it does so once, at midnight; ``timestamp_prefix`` says when things were said.
    ``{state.plan}`` is what a client keeps with the session under ``plan``, while memory answers. An empty
    conversation stays empty.
    """

    keeps_system: ClassVar[bool] = False

    text: Annotated[str, template_with(*_KNOWN)] = Field(min_length=1)
    """The prompt, with names in braces where they are wanted; write ``{{`` for a brace."""

    mode: Literal["prepend", "append", "replace", "if_missing"] = "prepend"
    """Before the client's own, behind them, in their place, or only where there is none."""

    role: Literal["system", "developer"] = "system"
    """The role of the message."""

    timezone: Timezone = "UTC"
    """Where the date is taken: an IANA name such as ``Europe/Berlin``."""

    unknown: str = "unknown"
    """What stands in for a value that is missing."""

    max_length: Annotated[Whole, Field(ge=1)] = 64
    """How many characters a value may have."""

    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            "Before the client's own",
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
            "In their place",
            {"text": "You are a waiter.", "mode": "replace", "role": "developer"},
            before=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}],
            after=[{"role": "developer", "content": "You are a waiter."}, {"role": "user", "content": "Hi."}],
        ),
        Example(
            "Only where there is none",
            {"text": "You are a waiter.", "mode": "if_missing"},
            before=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi."}],
            after=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi."}],
        ),
        Example(
            "Behind them",
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
        own = instructions(messages)
        if not messages or (own and self.mode == "if_missing"):
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
            head = own if own[-1:] == [prompt] else [*own, prompt]
        elif self.mode == "prepend":
            head = own if own[:1] == [prompt] else [prompt, *own]
        else:
            head = [prompt]
        return messages if head == own else [*head, *messages[len(own) :]]

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(names_in(self.text))
