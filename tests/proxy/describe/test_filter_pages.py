"""A filter's page contains everything in the filter's docstrings, and nothing else."""

import pytest
from pydantic import BaseModel, ConfigDict, Field

from docs.references import filters_reference
from filters.base import AnswerFilter, Context, Example, RequestFilter, Spoken
from proxy.describe.pages import KINDS, diff, filter_reference, pages
from proxy.settings.filter_registry import FilterRegistry

SHIPPED = pages(FilterRegistry(installed=False))
BESIDE_THE_WORDS = {"filler", "interruptable"}
every_page = pytest.mark.parametrize("shown", SHIPPED, ids=lambda shown: f"{shown.side} {shown.name}")


@every_page
def test_every_filter_has_a_page_with_nothing_left_out(shown):
    assert shown.summary.endswith(".")
    assert len(shown.summary) < 130
    assert [option.name for option in shown.options if not option.help] == []
    assert [option.name for option in shown.options if option.kind == "anything"] == []
    assert len(shown.examples) >= 2


@every_page
def test_an_example_shows_a_change(shown):
    changes = any(example.before != example.after for example in shown.examples)
    assert changes != (shown.name in BESIDE_THE_WORDS)


def test_all_that_is_shipped_has_a_page():
    shelf = FilterRegistry(installed=False)
    named = {(side, name) for side, kind in KINDS.items() for name in shelf.names(kind)}
    assert {(shown.side, shown.name) for shown in SHIPPED} == named


class Rule(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)

    find: str
    """What is looked for | found."""
    limit: float = Field(default=1, gt=0)
    """How often."""


class Odd(RequestFilter):
    """Do ``this`` over
    two lines.

    And more.
    """

    rules: tuple[Rule, ...] = Field(alias="with", min_length=1)
    """The rules."""
    named: dict[str, Rule] | None = None
    """By name."""
    size: int | None = Field(default=None, ge=1)
    """How large."""

    examples = (
        Example(
            "Fields",
            {"with": [{"find": "a" * 99}], "named": {}},
            before=[{"role": "user", "content": "Hi."}],
            after=[{"role": "user", "content": "Hi."}],
            context=Context(now=60.0, user="ann"),
        ),
        Example(
            "Marks",
            {},
            before=[{"role": "user", "content": "a\n```\nb", "name": "x y", "metadata": {"source": "asr"}}],
            after=[],
        ),
    )


class OddAnswer(AnswerFilter):
    """Say it."""

    spoken = (Spoken("Pieces", {}, before=["a", "b\nc"], after="ab"),)


@pytest.fixture
def odd(monkeypatch):
    def get(shelf, name, kind):
        return Odd if kind is RequestFilter else OddAnswer

    monkeypatch.setattr(FilterRegistry, "names", lambda shelf, kind: ("odd",))
    monkeypatch.setattr(FilterRegistry, "get", get)
    return pages(FilterRegistry())


def test_a_docstring_becomes_a_sentence_and_a_text(odd):
    assert (odd[0].summary, odd[1].summary) == ("Do `this` over two lines.", "Say it.")
    assert odd[0].text.endswith("two lines.\n\nAnd more.")


def test_options_are_told_in_words_and_nested_ones_too(odd):
    assert [(option.name, option.kind, option.default) for option in odd[0].options] == [
        ("with", "list of keys and values, not empty", None),
        ("with[].find", "text", None),
        ("with[].limit", "number, above 0", "1"),
        ("named", "keys and values, by name or nothing", "null"),
        ("named.*.find", "text", None),
        ("named.*.limit", "number, above 0", "1"),
        ("size", "integer, at least 1 or nothing", "null"),
    ]


def test_an_example_is_a_step_and_a_difference(odd):
    first, second = odd[0].examples
    assert first.step.startswith("- odd:\n    with:\n")
    assert first.context == "user `ann`, 1970-01-01 00:01 UTC"
    assert second.before == ('user (name "x y", source asr): a', "    ```", "    b")
    assert odd[1].examples[0].before == ("ab", "c")


def test_no_text_ends_a_block_or_a_cell_before_its_time(odd):
    text = filter_reference(odd[0])
    assert "````diff\n- user" in text
    assert "looked for \\| found" in text
    assert text.count("```yaml") == 2


def test_a_filter_of_both_sides_has_two_places_to_go_to(odd):
    text = filters_reference(odd)
    assert "[`odd`](#odd)" in text
    assert "[`odd`](#odd-1)" in text
    assert text.count("\n## odd\n") == 2


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ("abc", "abc", ["  a", "  b", "  c"]),
        ("abc", "axc", ["  a", "- b", "+ x", "  c"]),
        ("ab", "xy", ["- a", "+ x", "- b", "+ y"]),
        ("abc", "xyc", ["- a", "+ x", "- b", "+ y", "  c"]),
        ("abc", "xc", ["- a", "- b", "+ x", "  c"]),
        ("", "x", ["+ x"]),
    ],
)
def test_what_has_changed_stands_below_what_it_was(before, after, lines):
    assert diff(before, after) == lines
