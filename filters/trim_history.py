from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from filters.base import Context, Example, Messages, RequestFilter
from filters.injection import Injected
from filters.message import SYSTEM, Message
from filters.option_types import Number, Whole
from filters.tokens import in_message, in_text
from filters.tool_groups import Group, groups


class TrimHistory(RequestFilter):
    """Keep a conversation within the limits of a model by leaving out its oldest turns.

    A turn begins with a message of the user. When the conversation exceeds a maximum, whole turns are removed
    at once until its size is down to the share ``to``. The cut then stays in place for many turns, so the
    model's prompt cache keeps working. System and developer messages stay, and so do injected facts and
    summaries of any role; their tokens count, and ``to`` applies to the rest. Tool results are removed with
    their call. A call that waits for its results stays, and so does the newest message of the user with all
    that follows it, of any size.

    The cuts are computed from the start of the conversation, so the client must send all of it. Set the
    window of the voice platform larger than the maximum here. Otherwise the start moves in each turn, the cut
    moves with it, and the prompt cache is lost.
    """

    keeps_past: ClassVar[bool] = False
    leaves_out: ClassVar[str | None] = "trimmed"

    # A second walk begins at the first cut, and may cut turns that the first one could not.
    idempotent: ClassVar[bool] = False

    max_messages: Annotated[Whole, Field(ge=1)] | None = None
    """The most messages to send, not counting those that always stay."""

    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    """The most tokens to send: an estimate within 15 %, and closer once the model has reported counts."""

    max_turns: Annotated[Whole, Field(ge=1)] | None = None
    """The most turns to send."""

    to: Annotated[Number, Field(gt=0, lt=1)] = 0.75
    """The share of the maximum that is left after a cut. A lower share cuts more at once, and less often."""

    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            "The oldest turns go, the prompt stays",
            {"max_turns": 2, "to": 0.5},
            before=[
                {"role": "system", "content": "Be brief."},
                {"role": "assistant", "content": "Hello!"},
                {"role": "user", "content": "One"},
                {"role": "assistant", "content": "1"},
                {"role": "user", "content": "Two"},
                {"role": "assistant", "content": "2"},
                {"role": "user", "content": "Three"},
            ],
            after=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Three"}],
        ),
        Example(
            "A tool call goes with its result",
            {"max_tokens": 40},
            before=[
                {"role": "user", "content": "Is it raining in Reykjavik this afternoon?"},
                {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function"}]},
                {"role": "tool", "tool_call_id": "call_1", "content": "Rain until six."},
                {"role": "user", "content": "And tomorrow?"},
                {"role": "assistant", "content": "Sunny."},
                {"role": "user", "content": "Thanks!"},
            ],
            after=[
                {"role": "user", "content": "And tomorrow?"},
                {"role": "assistant", "content": "Sunny."},
                {"role": "user", "content": "Thanks!"},
            ],
        ),
    )

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if not (self.max_messages or self.max_tokens or self.max_turns):
            raise ValueError("say how much is kept: 'max_messages', 'max_tokens' or 'max_turns'")
        return self

    def apply(self, messages: Messages, context: Context) -> Messages:
        """Returns the messages without the oldest turns."""
        if not self._exceeds(messages, context):
            return messages
        tools = groups(messages)
        # An open group always stays.
        waiting = {i for group in tools if group.open for i in (group.call, *group.results)}
        turns = _turns(messages, tools)
        tokens = self._most_tokens(context) if self.max_tokens else None
        sizes = ((self.max_messages, _one), (tokens, _sizer(context)), (self.max_turns, _is_user))
        budgets = [_Budget(most, self.to, size) for most, size in sizes if most is not None]
        # ``first`` is the first turn that stays. It depends only on the messages so far, so that it is the
        # same in later turns.
        first = newest = 0
        for i, message in enumerate(messages):
            if turns[i] < first:
                continue  # a result whose call was cut
            newest = max(newest, turns[i])
            for budget in budgets:
                budget.take(message, None if i in waiting else turns[i])
            passed = [budget for budget in budgets if budget.is_passed]
            while first < newest and any(budget.is_to_shrink for budget in passed):
                for budget in budgets:
                    budget.drop(first)
                first += 1
        return [m for i, m in enumerate(messages) if turns[i] >= first or _stays(m) or i in waiting]

    def _exceeds(self, messages: Messages, context: Context) -> bool:
        """Whether the messages exceed a maximum; if not, no turn has been cut yet."""
        if self.max_messages and len(messages) > self.max_messages:
            return True
        if self.max_tokens and sum(map(_sizer(context), messages)) > self._most_tokens(context):
            return True
        return bool(self.max_turns) and sum(map(_is_user, messages)) > (self.max_turns or 0)

    def _most_tokens(self, context: Context) -> float:
        """Returns the maximum in estimated tokens, corrected by the model's own counts."""
        scale = context.memory.scale if context.count is in_text else 1.0
        return (self.max_tokens or 0) / scale


class _Budget:
    """The size of the messages that stay, by one measure, and its maximum."""

    def __init__(self, most: float, to: float, size: Callable[[Message], int]) -> None:
        self._most, self._to, self._size = most, to, size
        self._system = self._sum = 0
        self._by_turn: Counter[int] = Counter()

    def take(self, message: Message, turn: int | None) -> None:
        """Adds a message; ``turn`` is ``None`` for one that cannot be cut."""
        size = self._size(message)
        if _stays(message):
            self._system += size
            return
        self._sum += size
        if turn is not None:
            self._by_turn[turn] += size

    def drop(self, turn: int) -> None:
        """Subtracts a turn."""
        self._sum -= self._by_turn.pop(turn, 0)

    @property
    def is_passed(self) -> bool:
        """Whether the size exceeds the maximum."""
        return self._system + self._sum > self._most

    @property
    def is_to_shrink(self) -> bool:
        """Whether a cut has to continue."""
        return self._sum > self._to * (self._most - self._system)


def _stays(message: Message) -> bool:
    """Whether a message is never cut: instructions and injected messages."""
    return message.role in SYSTEM or isinstance(message, Injected)


def _sizer(context: Context) -> Callable[[Message], int]:
    return in_message if context.count is in_text else partial(in_message, count=context.count)


def _one(message: Message) -> int:
    return not _stays(message)


def _is_user(message: Message) -> int:
    return message.role == "user" and not isinstance(message, Injected)


def _turns(messages: Messages, tools: Sequence[Group]) -> list[int]:
    """Returns the turn of each message, counted from 0; a tool result has the turn of its call."""
    turns, turn = [], 0
    for message in messages:
        turn += _is_user(message)
        turns.append(turn)
    for group in tools:
        for result in group.results:
            turns[result] = turns[group.call]
    return turns
