"""Rules on the steps of a pipeline: steps that defeat one another, do nothing, or must agree."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from filters.base import Filter
from filters.repair_history import RepairHistory
from filters.restore_history import RestoreHistory
from proxy.errors import filter_name


class Order(msgspec.Struct, frozen=True):
    """A filter that must stand before another one, and why; ``when`` limits it to some options of ``then``.

    Filters are named as in YAML.
    """

    first: str
    then: str
    why: str
    when: Callable[[Any], bool] = lambda _: True


class NoOp(msgspec.Struct, frozen=True):
    """A filter whose options leave it nothing to do, and what to write instead."""

    name: str
    holds: Callable[[Any], bool]
    message: str


def _touches_answers(step: Any) -> bool:
    return "assistant" in getattr(step, "roles", ())


_CONTROL = "a prefix hides control words and doubled answers from it"
_SPOKEN = "it does not find words behind a prefix in 'original', and tells all of it as unheard"
_LAST_MARK = "a merged message has the marks of the first alone, and it would miss those of the others"
_BUDGET = "what it adds or takes away is not in the count, and the budget does not hold"
_BEFORE_WORDS = "a prefix would stand before what it tells, and not before the words"
_BARE = "what it puts in stands there unredacted"

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
    Order("restore_interrupted", "timestamp_prefix", _SPOKEN, _touches_answers),
    Order("restore_interrupted", "user_context", _SPOKEN, _touches_answers),
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
            *("inject_last_call", "inject_episodes", "recall", "rewrite", "system_prompt"),
        )
    ),
    *(
        Order(name, "redact", _BARE)
        for name in (
            *("user_context", "restore_interrupted", "restore_history", "inject_summaries"),
            *("inject_facts", "inject_last_call", "inject_episodes", "recall"),
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
    *(
        Order(prefix, name, _BEFORE_WORDS)
        for name in ("inject_episodes", "recall", "inject_facts")
        for prefix in ("timestamp_prefix", "user_context")
    ),
    Order("inject_facts", "recall", "what is told as a fact would be told as remembered as well"),
    Order(
        "system_prompt",
        "inject_facts",
        "it tells again what the prompt tells, and leaves out what only a prompt tells that is replaced",
    ),
    Order(
        "system_prompt",
        "inject_last_call",
        "it tells again what the prompt tells, and leaves out what only a prompt tells that is replaced",
    ),
    Order("restore_history", "inject_last_call", "turns are told apart by their words"),
    Order(
        "restore_history", "inject_facts", "turns are told apart by their words, before which it puts more"
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

_UNCOVERED: Final = "turns that a summary covers come back, and nothing puts the summary in their place"
_CLOSED: Final = "a tool call without a result would come back otherwise than it went"


def duplicates(steps: Sequence[Filter]) -> Sequence[int]:
    """The positions of steps that stand before with the same options."""
    return [i for i, step in enumerate(steps) if step in steps[:i]]


def order_warnings(steps: Sequence[Filter], *, summarising: bool = True) -> Iterator[tuple[int, str]]:
    """Where a step of ``request`` stands wrongly, lacks another one or does nothing, and what to write.

    ``summarising`` is whether there are summaries, without which nothing has to be injected.
    """
    # Where a filter stands more than once, the order of its first place counts.
    places = {filter_name(step): i for i, step in reversed(list(enumerate(steps)))}
    for rule in ORDERS:
        first, then = places.get(rule.first), places.get(rule.then)
        if first is not None and then is not None and then < first and rule.when(steps[then]):
            yield then, f"put this behind {rule.first}: {rule.why}"
    if summarising and "restore_history" in places and "inject_summaries" not in places:
        yield places["restore_history"], f"add inject_summaries: {_UNCOVERED}"
    yield from _no_ops(steps)


def _no_ops(steps: Sequence[Filter]) -> Iterator[tuple[int, str]]:
    dropped: dict[str, set[str]] = {"sources": set(), "roles": set()}
    repeated = duplicates(steps)
    for i, step in enumerate(steps):
        name = filter_name(step)
        yield from ((i, rule.message) for rule in NO_OPS if rule.name == name and rule.holds(step))
        conditions = {option: set(getattr(step, option, ())) for option in dropped}
        # The user's newest message is never dropped, so steps other than dropping still find it.
        finds_newest = name != "drop_messages" and "user" in getattr(step, "roles", ("user",))
        is_idle = any(names and names <= dropped[option] for option, names in conditions.items())
        if is_idle and not finds_newest and i not in repeated:
            yield (
                i,
                "an earlier step has dropped all that this works on; take this out, or put it before that",
            )
        named = [option for option, names in conditions.items() if names]
        # With two conditions a step drops less than either names.
        if name == "drop_messages" and len(named) == 1:
            dropped[named[0]] |= conditions[named[0]]


def agreement_warnings(steps: Sequence[Filter]) -> Iterator[tuple[int, str]]:
    """Where ``restore_history`` closes tool calls otherwise than ``repair_history`` does."""
    repair = next((step for step in steps if isinstance(step, RepairHistory)), None)
    if repair is None or not repair.tools:
        return
    for i, step in enumerate(steps):
        if not isinstance(step, RestoreHistory):
            continue
        if step.unanswered != repair.unanswered:
            yield i, f"give this the same 'unanswered' as repair_history: {_CLOSED}"
        elif repair.unanswered == "stub" and step.stub != repair.stub:
            yield i, f"give this the same 'stub' as repair_history: {_CLOSED}"
