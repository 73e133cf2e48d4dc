"""``trim_history``: what it cuts, and that the place of the cut does not move each turn."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.base import Context, Snapshot
from filters.inject_facts import InjectFacts
from filters.inject_summaries import InjectSummaries
from filters.injection import Remembered
from filters.merge_consecutive import MergeConsecutive
from filters.message import newest_user
from filters.tokens import in_message
from filters.tool_groups import groups
from filters.trim_history import TrimHistory
from tests.conversations import conversations, messages_of

CONTEXT = Context(now=0.0)
limits = st.fixed_dictionaries(
    {"to": st.sampled_from([0.3, 0.5, 0.75, 0.9])},
    optional={
        "max_messages": st.integers(1, 12),
        "max_tokens": st.integers(1, 120),
        "max_turns": st.integers(1, 5),
    },
).filter(lambda options: len(options) > 1)


def trimmed(messages, **options):
    return list(TrimHistory(**options).apply(messages, CONTEXT))


def talk(turns, *, tools=False):
    told = [{"role": "system", "content": "Be brief."}, {"role": "assistant", "content": "Hello!"}]
    for i in range(turns):
        told.append({"role": "user", "content": f"Question {i:03}"})
        if tools and i % 3 == 0:
            told.append({"role": "assistant", "tool_calls": [{"id": "call_0", "type": "function"}]})
            told.append({"role": "tool", "tool_call_id": "call_0", "content": "done"})
        told.append({"role": "assistant", "content": f"Answer {i:03}."})
    return messages_of(told)


def requests(told):
    """What a client sends that replays everything: one request for each message that is to be answered."""
    ends = [i + 1 for i, m in enumerate(told) if m.role in {"user", "tool"}]
    return [told[:end] for end in ends]


@pytest.mark.parametrize("option", ["max_messages", "max_tokens", "max_turns"])
def test_what_fits_is_handed_on_as_it_is(option):
    told = talk(5)
    assert TrimHistory(**{option: 1000}).apply(told, CONTEXT) is told


def test_something_must_be_limited():
    with pytest.raises(ValueError, match="say how much is kept"):
        TrimHistory()


@given(told=conversations(), options=limits)
def test_what_must_stay_stays(told, options):
    kept = trimmed(told, **options)
    newest = newest_user(told)
    behind = told[newest:] if newest is not None else []
    late = {i for group in groups(told) for i in group.results if group.call < (newest or 0)}
    must = [m for i, m in enumerate(behind, newest or 0) if i not in late]
    assert [m for m in kept if m.role in ("system", "developer")] == [
        m for m in told if m.role in ("system", "developer")
    ]
    assert all(m in kept for m in must)
    for group in groups(told):
        whole = [told[group.call], *(told[i] for i in group.results)]
        assert not group.open or all(m in kept for m in whole)


@given(told=conversations(), options=limits)
def test_a_tool_group_is_kept_or_cut_as_one(told, options):
    kept = {id(m) for m in trimmed(told, **options)}
    times = [id(m) for m in told]
    for group in groups(told):
        whole = {id(told[group.call]), *(id(told[i]) for i in group.results)}
        if all(times.count(each) == 1 for each in whole):
            assert whole <= kept or not whole & kept


@given(told=conversations(), options=limits)
def test_no_more_is_kept_than_may_be_unless_it_must(told, options):
    kept = trimmed(told, **options)
    first = next((i for i, m in enumerate(kept) if m.role == "user"), None)
    if any(group.open for group in groups(told)) or first is None or first == newest_user(kept):
        return
    spoken = [m for m in kept if m.role not in ("system", "developer")]
    assert len(spoken) <= options.get("max_messages", len(spoken))
    assert sum(m.role == "user" for m in kept) <= options.get("max_turns", len(kept))
    assert sum(map(in_message, kept)) <= options.get("max_tokens", 10**9)


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize(
    ("options", "turns_between_cuts"),
    [
        ({"max_messages": 40}, 4),
        ({"max_messages": 40, "to": 0.5}, 8),
        ({"max_turns": 20}, 5),
        ({"max_tokens": 400}, 5),
        ({"max_tokens": 400, "max_messages": 100}, 5),
    ],
)
def test_between_two_cuts_the_prompt_grows_at_its_tail_alone_and_cuts_are_rare(
    options, turns_between_cuts, tools
):
    prompts = [trimmed(told, **options) for told in requests(talk(100, tools=tools))]
    cuts = [(early, late) for early, late in pairwise(prompts) if late[: len(early)] != early]
    assert 2 <= len(cuts) <= 100 / turns_between_cuts
    assert all(len(late) < len(early) for early, late in cuts)


def test_a_cut_leaves_the_share_that_is_asked_for():
    told = talk(20)
    assert len(trimmed(told[: 2 + 11], max_messages=10, to=0.5)) <= 1 + 5


def test_tokens_of_system_messages_count_and_what_they_leave_is_shared():
    told = messages_of(
        [
            {"role": "system", "content": "x" * 46 * 9},
            *({"role": "user", "content": "y" * 46} for _ in range(5)),
        ]
    )
    assert len(trimmed(told, max_tokens=94 + 56, to=0.5)) == 1 + 2


def test_a_call_that_waits_stays_when_its_turn_goes():
    told = messages_of(
        [
            {"role": "user", "content": "One"},
            {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function"}]},
            {"role": "user", "content": "Two"},
            {"role": "user", "content": "Three"},
        ]
    )
    assert trimmed(told, max_turns=1) == [told[1], told[3]]


def test_a_result_that_comes_late_goes_with_its_call():
    told = messages_of(
        [
            {"role": "user", "content": "One"},
            {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function"}]},
            {"role": "user", "content": "Two"},
            {"role": "tool", "tool_call_id": "call_1", "content": "late"},
        ]
    )
    assert trimmed(told, max_turns=1) == [told[2]]


FACT = Remembered(kind="fact", text="Is called Ann.")
REMEMBERING = Context(now=0.0, memory=Snapshot(facts=(FACT,), summaries=("She wants a table for two.",)))


def injected(told, role):
    """The talk, with a summary and a fact before it."""
    for step in (InjectSummaries(role=role), InjectFacts(role=role)):
        told = step.apply(told, REMEMBERING)
    return told


LIMITS = [{"max_messages": 6}, {"max_tokens": 200}, {"max_turns": 3}, {"max_turns": 3, "max_tokens": 200}]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_facts_and_summaries_stay_in_any_role_and_take_the_same_room(limits):
    shown = {role: trimmed(injected(talk(12), role), **limits) for role in ("system", "developer", "user")}
    for role, kept in shown.items():
        assert [m.role for m in kept[1:3]] == [role, role]
        assert "Is called Ann." in kept[1].text
        assert "a table for two" in kept[2].text
        assert [m.text for m in kept] == [m.text for m in shown["system"]]
    assert 3 < len(shown["user"]) < 3 + 24


def test_they_stay_behind_a_step_that_merges_what_was_said():
    told = [message for message in talk(12) if message.text != "Hello!"]
    merged = MergeConsecutive().apply(injected(told, "user"), REMEMBERING)
    kept = trimmed(merged, max_turns=3)
    assert [m.role for m in kept[:4]] == ["system", "user", "user", "user"]
    assert "Is called Ann." in kept[1].text + kept[2].text
    assert "a table for two" in kept[1].text + kept[2].text
    assert "Question 011" in kept[-2].text
    assert len(kept) < len(merged)
