"""Steps of a pipeline that do the same to different messages, and so have to do it alike: rules as data."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from filters.base import Filter
from filters.repair_history import RepairHistory
from filters.restore_history import RestoreHistory


class Accord(msgspec.Struct, frozen=True):
    """An option that ``then`` needs as ``first`` has it, for which options of ``first``, and why."""

    first: type[Filter]
    then: type[Filter]
    option: str
    when: Callable[[Any], bool]
    why: str


_CLOSED: Final = "a tool call without a result would come back otherwise than it went"

ACCORDS: Final = (
    Accord(RepairHistory, RestoreHistory, "unanswered", lambda step: step.tools, _CLOSED),
    Accord(
        RepairHistory,
        RestoreHistory,
        "stub",
        lambda step: step.tools and step.unanswered == "stub",
        _CLOSED,
    ),
)


def findings(steps: Sequence[Filter]) -> Iterator[tuple[int, str]]:
    """Where an option is otherwise than it has to be, and what to do; once for each step."""
    for i, step in enumerate(steps):
        told = (message for rule in ACCORDS if (message := _at_odds(rule, steps, step)))
        if message := next(told, None):
            yield i, message


def _at_odds(rule: Accord, steps: Sequence[Filter], step: Filter) -> str | None:
    former = next((one for one in steps if isinstance(one, rule.first)), None)
    if former is None or not isinstance(step, rule.then) or not rule.when(former):
        return None
    if getattr(former, rule.option) == getattr(step, rule.option):
        return None
    name = rule.first.__module__.rpartition(".")[2]
    return f"give this the same '{rule.option}' as {name}: {rule.why}"
