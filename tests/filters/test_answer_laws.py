"""What holds for every answer filter, in every setting that its examples show."""

import copy
import time
from typing import Annotated

import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from pydantic import TypeAdapter

from filters.base import Context
from filters.hide_reasoning import HideReasoning
from proxy.describe.schema import model_schema
from tests.answers import SAMPLES, answer_text, cut_texts, deltas, texts
from tests.discovery import answer_filters, spoken_settings

CONTEXT = Context(now=1678909999.0, user="ann")
FILTERS = answer_filters()
SETTINGS = spoken_settings()
SPOKEN = {f"{name}: {s.title}": (found, s) for name, found in FILTERS.items() for s in found.spoken}
UNTOUCHED = ("role", "refusal", "tool_calls", "audio", "annotations", "x")

every_filter = pytest.mark.parametrize("found", [pytest.param(f, id=name) for name, f in FILTERS.items()])
every_setting = pytest.mark.parametrize("step", [pytest.param(s, id=title) for title, s in SETTINGS.items()])
every_spoken = pytest.mark.parametrize(
    ("found", "shown"), [pytest.param(*each, id=title) for title, each in SPOKEN.items()]
)


def every_stage():
    """A fresh stage of each setting in turn, named in the report of a failure."""
    for title, step in SETTINGS.items():
        note(title)
        if (stage := step.open(CONTEXT)) is not None:
            yield stage


def test_all_of_them_are_looked_at():
    assert {"speakable", "hide_reasoning", "filler", "interruptable", "redact"} <= FILTERS.keys()


@every_filter
def test_it_is_named_as_its_file_and_documents_itself(found):
    name = found.__module__.removeprefix("filters.")
    assert found.__name__ == "".join(word.capitalize() for word in name.split("_"))
    assert found.__doc__
    assert len(found.spoken) >= 2
    for option_name, option in model_schema(found).get("properties", {}).items():
        assert option.get("description"), f"{option_name} has no help"


@every_filter
def test_an_option_has_no_default_or_one_that_is_allowed(found):
    for name, option in found.model_fields.items():
        if not option.is_required():
            default = option.get_default(call_default_factory=True)
            assert TypeAdapter(Annotated[option.annotation, option]).validate_python(default) == default, name


@every_spoken
def test_an_example_is_true_as_it_streams_and_at_every_cut(found, shown):
    step, text = found(**shown.options), "".join(shown.before)
    assert answer_text(step, shown.before, shown.context) == shown.after
    assert answer_text(step, text, shown.context) == shown.after
    for cut in range(len(text) + 1):
        assert answer_text(step, [text[:cut], text[cut:]], shown.context) == shown.after


@given(cut=cut_texts())
def test_where_a_text_is_cut_makes_no_difference(cut):
    text, pieces = cut
    for title, step in SETTINGS.items():
        note(title)
        whole = answer_text(step, [text], CONTEXT)
        assert answer_text(step, pieces, CONTEXT) == whole
        assert answer_text(step, text, CONTEXT) == whole


@every_setting
@pytest.mark.parametrize("text", SAMPLES)
def test_samples_come_out_the_same_at_every_pair_of_cuts(step, text):
    whole = answer_text(step, [text], CONTEXT)
    for first in range(len(text)):
        for length in (0, 1, 2, 3, 5, 8, 13, 21):
            second = first + length
            assert answer_text(step, [text[:first], text[first:second], text[second:]], CONTEXT) == whole


@given(told=st.lists(deltas, max_size=4))
def test_whatever_comes_is_left_as_it_was_and_what_goes_on_is_a_mapping(told):
    for stage in every_stage():
        before = copy.deepcopy(told)
        shown = [stage.feed(delta) for delta in told]
        assert told == before
        assert all(isinstance(delta, dict) for delta in [*shown, stage.close()])


@given(told=st.lists(deltas, max_size=4))
def test_all_but_words_and_reasoning_passes_untouched(told):
    for stage in every_stage():
        for delta in told:
            shown = stage.feed(delta)
            assert {k: v for k, v in shown.items() if k in UNTOUCHED} == {
                k: v for k, v in delta.items() if k in UNTOUCHED
            }
            assert shown.keys() <= delta.keys()
            assert all(shown[key] is delta[key] for key in shown.keys() - {"content"})
        assert stage.close().keys() <= {"content"}


@given(told=st.lists(deltas, max_size=4))
def test_a_delta_in_which_nothing_changes_is_the_very_same(told):
    for stage in every_stage():
        for delta in told:
            shown = stage.feed(delta)
            assert shown is delta or shown != delta


@given(told=st.lists(deltas, max_size=4))
def test_the_same_gives_the_same(told):
    for first, second in zip(every_stage(), every_stage(), strict=True):
        assert [first.feed(d) for d in told] == [second.feed(copy.deepcopy(d)) for d in told]
        assert first.close() == second.close()


def test_two_choices_do_not_know_of_each_other():
    for step in SETTINGS.values():
        one, other = step.open(CONTEXT), step.open(CONTEXT)
        if one is not None:
            for char in "**<think>[14:23] a@":
                one.feed({"content": char})
            assert other.feed({"content": ""}) == {"content": ""}
            assert other.close() == {}


@every_setting
def test_an_answer_without_words_has_none_at_the_end(step):
    stage = step.open(CONTEXT)
    if stage is not None:
        stage.feed({"role": "assistant", "content": None, "tool_calls": []})
        assert stage.close() == {}


PLAIN = "The weather in München today is warm; bring a hat, 好的, شكرا. See you at 10!"


@every_setting
def test_plain_words_wait_for_no_more_than_the_end_of_a_word(step):
    stage = step.open(CONTEXT)
    if stage is None or getattr(step, "opened", False):
        return
    told = given_out = ""
    for piece in ["Hello, ", *PLAIN.split(" ")]:
        told += piece + " "
        given_out += stage.feed({"content": piece + " "})["content"]
        assert len(told) - len(given_out) <= 16


HELD = (
    "[",
    "**[a ",
    "![",
    "<b ",
    "http",
    "```",
    "| ",
    "|",
    "_",
    "\\",
    "[14:23",
    "(1",
    "<think",
    "[a](b 'c",
    "[^",
)
FILLINGS = (".", "a", "1", " ", "-", "*", "`", "(", "[", "|", "好", "a ", "\n")


@every_setting
@pytest.mark.parametrize("begun", HELD)
def test_what_is_held_back_is_bounded(step, begun):
    """At most 200 characters, and for mail addresses what they may have."""
    most = getattr(getattr(step, "sensitive", None), "longest", 200) + 2
    for filling in FILLINGS:
        stage = step.open(CONTEXT)
        if stage is None:
            return
        stage.feed({"content": "x " + begun})
        for _ in range(600):
            stage.feed({"content": filling})
        assert len(stage.close().get("content", "")) <= most, filling


@every_setting
@pytest.mark.parametrize(
    "unit",
    ["a", "[", "*", "**a", "<", "`", "|", "| a", "\n- ", "![a](b", "https://a(", "😀", "#", "h", "a@", "1 "],
)
def test_a_long_answer_costs_what_its_length_says(step, unit):
    text = unit * (60_000 // len(unit))
    started = time.thread_time()
    answer_text(step, [text], CONTEXT)
    answer_text(step, text[:6000], CONTEXT)
    assert time.thread_time() - started < 2


@given(text=texts)
def test_a_filter_that_opens_no_stage_has_something_else_to_do(text):
    for step in SETTINGS.values():
        if step.open(CONTEXT) is None:
            assert answer_text(step, [text], CONTEXT) == text


def test_the_words_of_a_list_are_words_too():
    part = {"type": "text", "text": "<think>hm</think>Hi"}
    stage = HideReasoning().open(CONTEXT)
    shown = stage.feed({"content": [{"type": "thinking", "thinking": "hm"}, part, {"type": "image_url"}]})
    assert shown == {"content": [{"type": "text", "text": "Hi"}, {"type": "image_url"}]}
