"""Steps of a pipeline that defeat one another, or can do nothing: rules as data."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final

import msgspec

from filters.base import Filter
from filters.repair_history import RepairHistory
from filters.restore_history import RestoreHistory
from proxy.errors import filter_name

_CONTROL = "a prefix hides control words and doubled answers from it"
_SPOKEN = "it does not find words behind a prefix in 'original', and tells all of it as unheard"
_LAST_MARK = "a merged message has the marks of the first alone, and it would miss those of the others"
_BUDGET = "what it adds or takes away is not in the count, and the budget does not hold"
_BEFORE_WORDS = "a prefix would stand before what it tells, and not before the words"
_BARE = "what it puts in stands there unredacted"
_CLOSED: Final = "a tool call without a result would come back otherwise than it went"


class Order(msgspec.Struct, frozen=True):
    """``first`` has to stand before ``then``, and why; ``when`` says for which options of ``then``.

    Filters are named as in YAML. A rule for one that is not there never applies.
    """

    first: str
    then: str
    why: str
    when: Callable[[Any], bool] = lambda _: True


class Requirement(msgspec.Struct, frozen=True):
    """A filter that does harm without another one, and why."""

    name: str
    needs: str
    why: str


def _touches_answers(step: Any) -> bool:
    return "assistant" in getattr(step, "roles", ())


ORDERS: Final = (
    Order("repair_history", "timestamp_prefix", _CONTROL),
    Order("repair_history", "user_context", _CONTROL),
    Order(
        "repair_history",
        "restore_interrupted",
        "an answer of which nothing was heard gets words, and it no longer takes that for an empty one",
        lambda step: getattr(step, "show", None) != "heard",
    ),
    Order(
        "repair_history",
        "merge_consecutive",
        "an answer that was committed twice is merged with its double before it can see two",
    ),
    Order(
        "restore_interrupted",
        "timestamp_prefix",
        _SPOKEN,
        _touches_answers,
    ),
    Order(
        "restore_interrupted",
        "user_context",
        _SPOKEN,
        _touches_answers,
    ),
    Order("restore_interrupted", "merge_consecutive", _LAST_MARK),
    Order("drop_messages", "merge_consecutive", _LAST_MARK),
    Order("timestamp_prefix", "merge_consecutive", _LAST_MARK),
    Order("user_context", "merge_consecutive", _LAST_MARK),
    Order(
        "restore_interrupted",
        "rewrite",
        "it does not find rewritten words in 'original'",
        _touches_answers,
    ),
    *(
        Order(name, "trim_history", _BUDGET)
        for name in (
            *("repair_history", "drop_messages", "restore_interrupted", "timestamp_prefix", "user_context"),
            *("merge_consecutive", "restore_history", "inject_summaries", "inject_facts"),
            *("inject_episodes", "recall", "rewrite", "system_prompt"),
        )
    ),
    *(
        Order(name, "redact", _BARE)
        for name in (
            *("user_context", "restore_interrupted", "restore_history", "inject_summaries"),
            *("inject_facts", "inject_episodes", "recall"),
        )
    ),
    Order("repair_history", "restore_history", "turns are told apart by their words, which it puts right"),
    Order("restore_history", "inject_summaries", "a turn that came back would stand beside its summary"),
    Order("restore_history", "drop_messages", "what comes back is not dropped again"),
    Order("restore_history", "restore_interrupted", "an answer that comes back is not told as interrupted"),
    Order("restore_history", "timestamp_prefix", "what comes back has no prefix"),
    Order("restore_history", "user_context", "what comes back has no prefix"),
    Order("restore_history", "merge_consecutive", "turns are told apart before they are merged"),
    Order("inject_summaries", "merge_consecutive", "turns are told apart before they are merged"),
    Order("timestamp_prefix", "inject_episodes", _BEFORE_WORDS),
    Order("user_context", "inject_episodes", _BEFORE_WORDS),
    Order("timestamp_prefix", "recall", _BEFORE_WORDS),
    Order("user_context", "recall", _BEFORE_WORDS),
    Order("timestamp_prefix", "inject_facts", _BEFORE_WORDS),
    Order("user_context", "inject_facts", _BEFORE_WORDS),
    Order("inject_facts", "recall", "what is told as a fact would be told as remembered as well"),
    Order(
        "system_prompt",
        "inject_facts",
        "it tells again what the prompt tells, and leaves out what only a prompt tells that is replaced",
    ),
    Order(
        "restore_history", "inject_facts", "turns are told apart by their words, before which it puts more"
    ),
)


class NoOp(msgspec.Struct, frozen=True):
    """A filter whose options leave it nothing to do."""

    name: str
    holds: Callable[[Any], bool]
    message: str


REQUIREMENTS: Final = (
    Requirement(
        "restore_history",
        "inject_summaries",
        "turns that a summary covers come back, and nothing puts the summary in their place",
    ),
)
NO_OPS: Final = (
    NoOp(
        "restore_interrupted",
        lambda step: getattr(step, "show", None) == "heard",
        "with 'show: heard' this changes nothing; take it out, or write 'show: both'",
    ),
    NoOp(
        "repair_history",
        lambda step: not any(getattr(step, name, True) for name in ("tools", "empty", "repeated", "control")),
        "all that this does is switched off; take it out",
    ),
)


def is_shipped(name: str) -> bool:
    """Whether there is a filter of this name among ours."""
    return find_spec(f"filters.{name}") is not None


def order_warnings(
    steps: Sequence[Filter], is_there: Callable[[str], bool] = is_shipped
) -> Iterator[tuple[int, str]]:
    """What the rules find in the steps between a client's request and the model: where, and what to do.

    Nobody is told to add a filter of which ``is_there`` says that there is none.
    """
    yield from _misordered(steps)
    yield from _needy(steps, is_there)
    yield from _no_ops(steps)


def duplicates(steps: Sequence[Filter]) -> Sequence[int]:
    """Where a step stands that stood before with the same options."""
    return [i for i, step in enumerate(steps) if step in steps[:i]]


def _misordered(steps: Sequence[Filter]) -> Iterator[tuple[int, str]]:
    """Where a filter stands more than once, the order of its first place counts."""
    places = _first_places(steps)
    for rule in ORDERS:
        first, then = places.get(rule.first), places.get(rule.then)
        if first is not None and then is not None and then < first and rule.when(steps[then]):
            yield then, f"put this behind {rule.first}: {rule.why}"


def _needy(steps: Sequence[Filter], is_there: Callable[[str], bool]) -> Iterator[tuple[int, str]]:
    places = _first_places(steps)
    for need in REQUIREMENTS:
        if need.name in places and need.needs not in places and is_there(need.needs):
            yield places[need.name], f"add {need.needs}: {need.why}"


def _first_places(steps: Sequence[Filter]) -> Mapping[str, int]:
    return {filter_name(step): i for i, step in reversed(list(enumerate(steps)))}


# --- steps that can do nothing
def _no_ops(steps: Sequence[Filter]) -> Iterator[tuple[int, str]]:
    gone: dict[str, set[str]] = {"sources": set(), "roles": set()}
    repeated = duplicates(steps)
    for i, step in enumerate(steps):
        yield from (
            (i, rule.message) for rule in NO_OPS if rule.name == filter_name(step) and rule.holds(step)
        )
        if i not in repeated and any(_wants_only(step, option, names) for option, names in gone.items()):
            yield (
                i,
                "an earlier step has dropped all that this works on; take this out, or put it before that",
            )
        if filter_name(step) == "drop_messages":
            _note_dropped(step, gone)


def _note_dropped(step: Filter, gone: Mapping[str, set[str]]) -> None:
    """What goes whatever else is said of it: a step with two conditions drops less than either names."""
    conditions = {option: set(getattr(step, option, ())) for option in gone}
    named = [option for option, names in conditions.items() if names]
    if len(named) == 1:
        gone[named[0]].update(conditions[named[0]])


def _wants_only(step: Filter, option: str, gone: Collection[str]) -> bool:
    wanted = set(getattr(step, option, ()))
    # The user's newest message is never dropped, so steps other than dropping still find it.
    finds_newest = filter_name(step) != "drop_messages" and "user" in getattr(step, "roles", ("user",))
    return bool(wanted) and wanted <= set(gone) and not finds_newest


class Agreement(msgspec.Struct, frozen=True):
    """An option that ``then`` needs as ``first`` has it, for which options of ``first``, and why."""

    first: type[Filter]
    then: type[Filter]
    option: str
    when: Callable[[Any], bool]
    why: str


AGREEMENTS: Final = (
    Agreement(RepairHistory, RestoreHistory, "unanswered", lambda step: step.tools, _CLOSED),
    Agreement(
        RepairHistory,
        RestoreHistory,
        "stub",
        lambda step: step.tools and step.unanswered == "stub",
        _CLOSED,
    ),
)


def agreement_warnings(steps: Sequence[Filter]) -> Iterator[tuple[int, str]]:
    """Where an option is otherwise than it has to be, and what to do; once for each step."""
    for i, step in enumerate(steps):
        told = (message for rule in AGREEMENTS if (message := _at_odds(rule, steps, step)))
        if message := next(told, None):
            yield i, message


def _at_odds(rule: Agreement, steps: Sequence[Filter], step: Filter) -> str | None:
    former = next((one for one in steps if isinstance(one, rule.first)), None)
    if former is None or not isinstance(step, rule.then) or not rule.when(former):
        return None
    if getattr(former, rule.option) == getattr(step, rule.option):
        return None
    name = rule.first.__module__.rpartition(".")[2]
    return f"give this the same '{rule.option}' as {name}: {rule.why}"
