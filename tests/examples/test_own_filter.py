"""What stands in examples/own_filter is a filter as any other, and keeps what its examples promise."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.base import AnswerFilter, Context, RequestFilter
from proxy.settings.filter_registry import FilterRegistry
from proxy.settings.load import load
from tests.conversations import messages_of

OWN = Path(__file__).parents[2] / "examples" / "own_filter"
SHELF, WRONG = FilterRegistry().with_files([OWN / "glossary.py", OWN / "spell_digits.py"])
GLOSSARY = SHELF.get("glossary", RequestFilter)
SPELL_DIGITS = SHELF.get("spell_digits", AnswerFilter)


def test_its_configuration_loads():
    assert WRONG == {}
    pipeline = load(OWN / "own.yaml", {}).pipelines["default"]
    assert [type(step).__name__ for step in (*pipeline.request, *pipeline.answer)] == [
        "RepairHistory",
        "Glossary",
        "SpellDigits",
    ]


@pytest.mark.parametrize("example", GLOSSARY.examples, ids=lambda example: example.title)
def test_a_request_example_is_true(example):
    shown = GLOSSARY(**example.options).apply(messages_of(example.before), example.context)
    assert shown == messages_of(example.after)


@pytest.mark.parametrize(
    ("heard", "meant"),
    [
        ("TURN KEEPER", "Turnkeeper"),
        ("turn keepers", "turn keepers"),
        ("a.b", "dot"),
        ("axb", "axb"),
    ],
)
def test_whole_words_are_corrected_as_they_are_written(heard, meant):
    step = GLOSSARY(words={"turn keeper": "Turnkeeper", "a.b": "dot"})
    (said,) = step.apply(messages_of([{"role": "user", "content": heard}]), Context(now=0))
    assert said.content == meant


@pytest.mark.parametrize("example", SPELL_DIGITS.spoken, ids=lambda example: example.title)
def test_an_answer_example_is_true(example):
    assert streamed(SPELL_DIGITS(**example.options), example.before) == example.after


@given(st.text("ab 12"), st.data())
def test_an_answer_is_the_same_wherever_it_is_cut(text, data):
    cut = data.draw(st.integers(0, len(text)))
    step = SPELL_DIGITS(digits=2)
    assert streamed(step, [text[:cut], text[cut:]]) == streamed(step, [text])


def test_a_delta_without_numbers_passes_as_it_came():
    delta = {"content": "Hello"}
    assert SPELL_DIGITS().open(Context(now=0)).feed(delta) is delta


def streamed(step, pieces):
    stage = step.open(Context(now=0))
    deltas = [stage.feed({"content": piece}) for piece in pieces]
    return "".join(delta.get("content", "") for delta in [*deltas, stage.close()])
