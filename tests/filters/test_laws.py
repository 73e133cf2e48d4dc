"""What holds for every request filter, in every setting that its examples show."""

import copy
import time
from collections import Counter
from itertools import chain, takewhile
from typing import Annotated

import msgspec
import pytest
from hypothesis import given, note
from msgspec import UNSET
from pydantic import TypeAdapter

from filters.base import Context
from filters.group import call_ids
from tests.conversations import conversations, messages_of, turns
from tests.discovery import request_filters, shown_settings

CONTEXT = Context(now=1678909999.0)
FILTERS = request_filters()
SETTINGS = shown_settings()
EXAMPLES = {
    f"{name}: {example.title}": (found, example)
    for name, found in FILTERS.items()
    for example in found.examples
}

# What they put before the words says nothing about itself, so a second time puts it there again.
ADDS_EVERY_TIME = {"TimestampPrefix", "UserContext"}
CONTROL = "<continue>"

every_setting = pytest.mark.parametrize("step", [pytest.param(s, id=title) for title, s in SETTINGS.items()])


def every_step():
    """Each setting in turn, named in the report of a failure: a conversation is dear, a step is not."""
    for title, step in SETTINGS.items():
        note(title)
        yield step


every_filter = pytest.mark.parametrize("found", [pytest.param(f, id=name) for name, f in FILTERS.items()])


@every_filter
def test_a_filter_is_named_as_its_file(found):
    name = found.__module__.removeprefix("filters.")
    assert found.__name__ == "".join(word.capitalize() for word in name.split("_"))


@every_filter
def test_a_filter_documents_itself(found):
    assert found.__doc__
    assert len(found.examples) >= 2
    for name, option in found.model_fields.items():
        assert option.description, f"{name} has no help"


@every_filter
def test_an_option_is_required_or_has_a_default_that_is_allowed(found):
    for name, option in found.model_fields.items():
        if not option.is_required():
            default = option.get_default(call_default_factory=True)
            assert TypeAdapter(Annotated[option.annotation, option]).validate_python(default) == default, name


@pytest.mark.parametrize(("found", "example"), [pytest.param(*e, id=title) for title, e in EXAMPLES.items()])
def test_an_example_is_true(found, example):
    shown = found(**example.options).apply(messages_of(example.before), example.context)
    assert list(shown) == messages_of(example.after)


@every_setting
def test_nothing_in_gives_nothing_out(step):
    assert list(step.apply([], CONTEXT)) == []


@given(told=conversations())
def test_what_goes_in_is_left_as_it_was(told):
    for step in every_step():
        before = copy.deepcopy(told)
        step.apply(told, CONTEXT)
        assert told == before


@given(told=conversations())
def test_the_same_gives_the_same(told):
    for step in every_step():
        again = type(step)(**step.model_dump(exclude_unset=True))
        assert list(step.apply(told, CONTEXT)) == list(again.apply(tuple(copy.deepcopy(told)), CONTEXT))


@given(told=conversations())
def test_a_second_time_changes_nothing(told):
    for step in every_step():
        once = step.apply(told, CONTEXT)
        if type(step).__name__ not in ADDS_EVERY_TIME and getattr(step, "show", None) != "both":
            assert list(step.apply(once, CONTEXT)) == list(once)


@given(told=conversations())
def test_unknown_fields_are_kept(told):
    told = [msgspec.structs.replace(m, others={**m.others, "mark": i}) for i, m in enumerate(told)]
    for step in every_step():
        for message in step.apply(told, CONTEXT):
            if message.others or message.role != "tool":  # a missing result that was made up has none
                assert message.others == told[message.others["mark"]].others


@given(told=conversations())
def test_system_messages_stay_as_they_are(told):
    for step in every_step():
        assert _system(step.apply(told, CONTEXT)) == _system(told)


def _system(messages):
    return [m for m in messages if m.role in ("system", "developer")]


@given(told=conversations())
def test_a_call_and_its_results_stay_together(told):
    """No result is left without the call that it had, and no call that stays loses a result."""
    for step in every_step():
        called, answered = _called(told), _answered(told)
        if max(Counter(called).values(), default=1) > 1:
            return  # which of two calls with one id a result belongs to is told by the tests of groups
        shown = step.apply(told, CONTEXT)
        still_called, still_answered = set(_called(shown)), _answered(shown)
        assert still_answered - still_called <= answered - set(called)
        assert answered & still_called <= still_answered


def _called(messages):
    return [i for m in messages if m.role == "assistant" for i in call_ids(m)]


def _answered(messages):
    return {m.tool_call_id for m in messages if m.role == "tool"}


@given(told=conversations())
def test_the_newest_words_of_the_user_survive(told):
    """A control word is not the user's, and may go."""
    for step in every_step():
        newest = next((m for m in reversed(told) if m.role == "user"), None)
        if newest is not None and newest.text.strip() != CONTROL:
            shown = [m for m in step.apply(told, CONTEXT) if m.role == "user"]
            assert shown[-1].text.endswith(newest.text)


@given(told=turns())
def test_a_growing_conversation_changes_at_its_tail_alone(told):
    """All that came before the newest message of the user is settled: a further turn leaves it as it was.

    Only the last settled message may grow at its end, for what follows it can be merged into it. A turn
    holds its tool results; one that comes a turn late corrects the past, and is no part of this law.
    """
    for step in every_step():
        for known in range(1, len(told)):
            before = step.apply(list(chain(*told[:known])), CONTEXT)
            after = step.apply(list(chain(*told[: known + 1])), CONTEXT)
            settled = _settled(before, _newest_turn(told[:known]))
            assert len(after) >= len(settled)
            for early, late in zip(settled[:-1], after, strict=False):
                assert late == early
            for early, late in zip(settled[-1:], after[max(0, len(settled) - 1) :], strict=False):
                assert late.text.startswith(early.text)
                assert msgspec.structs.replace(late, content=early.content) == early


def _settled(messages, newest):
    return list(takewhile(lambda m: m.turn_id is UNSET or m.turn_id < newest, messages))


def _newest_turn(told):
    spoken = [m.turn_id for turn in told for m in turn if m.role == "user"]
    numbered = [m.turn_id for turn in told for m in turn if m.turn_id is not UNSET]
    return [0, *numbered[-1:], *spoken[-1:]][-1]


@every_setting
def test_a_long_conversation_costs_what_its_length_says(step):
    group = [
        {"role": "user", "content": "Go on", "timestamp": 1, "metadata": {"user": "ann", "source": "asr"}},
        {
            "role": "user",
            "content": "please",
            "timestamp": 1e9,
            "metadata": {"user": "bob", "source": "command"},
        },
        {"role": "assistant", "tool_calls": [{"id": "call_0"}]},
        {"role": "tool", "tool_call_id": "call_0", "content": "done"},
        {"role": "assistant", "content": "A", "metadata": {"interrupted": True, "original": "A b"}},
    ]
    told = messages_of(group) * 4000
    started = time.perf_counter()
    step.apply(told, CONTEXT)
    assert time.perf_counter() - started < 2
