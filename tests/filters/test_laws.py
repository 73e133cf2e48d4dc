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
from filters.tool_groups import call_ids
from proxy.describe.schema import model_schema
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

CONTROL = "<continue>"
# Filters make up results that are missing, and prompts; nobody else's words.
MADE_UP = ("tool", "system", "developer")

every_setting = pytest.mark.parametrize("step", [pytest.param(s, id=title) for title, s in SETTINGS.items()])


def every_step(law=None):
    """Each setting in turn, named in the report of a failure: a conversation is dear, a step is not.

    With a law's name, only the steps that claim to obey it.
    """
    for title, step in SETTINGS.items():
        if law is None or getattr(step, law):
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
    for name, option in model_schema(found).get("properties", {}).items():
        assert option.get("description"), f"{name} has no help"


@every_filter
def test_an_option_is_required_or_has_a_default_that_is_allowed(found):
    for name, option in found.model_fields.items():
        if not option.is_required():
            default = option.get_default(call_default_factory=True)
            declared = Annotated[(option.annotation, name, *option.metadata)]
            assert TypeAdapter(declared).validate_python(default) == default, name


@pytest.mark.parametrize(("found", "example"), [pytest.param(*e, id=title) for title, e in EXAMPLES.items()])
def test_an_example_is_true(found, example):
    step = found(**example.options)
    shown = step.apply(messages_of(example.before), example.context)
    # As JSON values: which messages a filter put in, only their type says.
    assert msgspec.to_builtins(list(shown)) == msgspec.to_builtins(messages_of(example.after))
    fields = step.set(raw(example.fields), example.context)
    assert {name: msgspec.json.decode(value) for name, value in fields.items()} == example.fields_after


def raw(fields):
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()}


@every_setting
def test_fields_that_stay_are_handed_on_as_they_are(step):
    settled = step.set(raw({"model": "large", "temperature": 1, "max_tokens": 100}), CONTEXT)
    before = dict(settled)
    assert step.set(settled, CONTEXT) is settled
    assert settled == before


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
        again = type(step)(**step.model_dump(exclude_unset=True, by_alias=True))
        assert list(step.apply(told, CONTEXT)) == list(again.apply(tuple(copy.deepcopy(told)), CONTEXT))


@given(told=conversations())
def test_a_second_time_changes_nothing(told):
    for step in every_step("idempotent"):
        once = step.apply(told, CONTEXT)
        assert list(step.apply(once, CONTEXT)) == list(once)


@given(told=conversations())
def test_unknown_fields_are_kept(told):
    told = [msgspec.structs.replace(m, others={**m.others, "mark": i}) for i, m in enumerate(told)]
    for step in every_step():
        for message in step.apply(told, CONTEXT):
            if message.others or message.role not in MADE_UP:
                assert message.others == told[message.others["mark"]].others


@given(told=conversations())
def test_system_messages_stay_as_they_are(told):
    for step in every_step("keeps_system"):
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
    for step in every_step("keeps_words"):
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
    for step in every_step("keeps_past"):
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
    started = time.thread_time()
    step.apply(told, CONTEXT)
    assert time.thread_time() - started < 2
