from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.base import AnswerFilter, Context
from proxy.answer.stages import Stages, joined, said
from proxy.errors import FilterFailed

CONTEXT = Context(now=0.0)


class Quiet(AnswerFilter):
    """Has nothing to do with deltas."""


class Trial(AnswerFilter):
    """Opens stages of one kind, which enter themselves in ``log``."""

    kind: Any
    log: Any

    def open(self, context):
        return self.kind(self.log)


class Watched:
    def __init__(self, log):
        self.closed = 0
        log.append(self)

    def close(self):
        self.closed += 1
        return {}

    def feed(self, delta):
        return delta


class Whispering(Watched):
    """Lower case: needs nothing held back."""

    def feed(self, delta):
        return {**delta, "content": delta["content"].lower()} if delta.get("content") else delta


class Pairing(Watched):
    """Letters in pairs, swapped: holds one back, so that the end matters."""

    held = ""

    def feed(self, delta):
        if not delta.get("content"):
            return delta
        text = self.held + delta["content"]
        even = len(text) // 2 * 2
        self.held = text[even:]
        return {**delta, "content": "".join(text[i + 1] + text[i] for i in range(0, even, 2))}

    def close(self):
        super().close()
        return {"content": self.held} if self.held else {}


class Bracketing(Watched):
    """Holds everything back until the end."""

    said = ""

    def feed(self, delta):
        self.said += delta.get("content") or ""
        return {}

    def close(self):
        super().close()
        return {"content": f"<{self.said}>"}


class FailingFeed(Watched):
    def feed(self, delta):
        raise ZeroDivisionError


class FailingClose(Watched):
    def close(self):
        super().close()
        raise ZeroDivisionError


def through(*kinds):
    """Filters with these stages, and the log of the stages that they open."""
    log = []
    return [Trial.model_construct(kind=kind, log=log) for kind in kinds], log


kinds = st.lists(st.sampled_from([Watched, Whispering, Pairing, Bracketing]), max_size=4)
cuts = st.lists(st.integers(0, 30), max_size=6)


def pieces(text, places):
    edges = sorted({0, len(text), *(min(place, len(text)) for place in places)})
    return [text[a:b] for a, b in pairwise(edges)]


@given(kinds, st.text(max_size=30), cuts, cuts)
def test_an_answer_comes_out_the_same_however_it_was_cut(stages, text, one_way, another):
    filters, _ = through(*stages)
    assert said(filters, CONTEXT, pieces(text, one_way)) == said(filters, CONTEXT, pieces(text, another))


@given(kinds, st.text(max_size=30), cuts)
def test_filters_in_a_row_do_what_each_does_to_the_words_of_the_one_before(stages, text, places):
    filters, _ = through(*stages)
    one_by_one = text
    for each in filters:
        one_by_one = said([each], CONTEXT, [one_by_one] if one_by_one else [])
    assert said(filters, CONTEXT, pieces(text, places)) == one_by_one


def test_what_one_stage_gives_at_its_end_goes_through_those_behind_it():
    filters, _ = through(Pairing, Whispering, Bracketing)
    assert said(filters, CONTEXT, ["AB", "C"]) == "<bac>"


@given(st.lists(st.sampled_from([Watched, Pairing, FailingFeed, FailingClose]), max_size=5))
def test_each_stage_is_closed_once_whatever_fails(stages):
    filters, log = through(*stages)
    answer = Stages(filters, CONTEXT)
    for act in (lambda: answer.feed({"content": "abc"}), answer.close, answer.close):
        with suppress(FilterFailed):
            act()
    assert [stage.closed for stage in log] == [1] * len(stages)


def test_a_stage_that_fails_at_its_end_is_not_passed_over_in_silence():
    filters, log = through(FailingClose, Watched)
    with pytest.raises(FilterFailed):
        Stages(filters, CONTEXT).close()
    assert [stage.closed for stage in log] == [1, 1]


def test_a_stage_that_fails_on_what_another_held_back_is_closed_too():
    filters, log = through(Bracketing, FailingFeed, Watched)
    with pytest.raises(FilterFailed):
        Stages(filters, CONTEXT).close()
    assert [stage.closed for stage in log] == [1, 1, 1]


def test_what_was_held_back_comes_once():
    filters, _ = through(Bracketing)
    answer = Stages(filters, CONTEXT)
    answer.feed({"content": "a"})
    assert [answer.close(), answer.close()] == [{"content": "<a>"}, {}]


def test_a_delta_that_nobody_changes_is_the_very_same():
    filters, _ = through(Watched, Pairing, Whispering)
    answer = Stages([Quiet(), *filters], CONTEXT)
    delta = {"role": "assistant", "content": ""}
    assert answer.feed(delta) is delta


def test_filters_that_do_not_look_at_deltas_leave_no_stage():
    filters, _ = through(Watched)
    assert not Stages([Quiet()], CONTEXT)
    assert Stages([Quiet(), *filters], CONTEXT)


def test_two_choices_know_nothing_of_each_other():
    filters, _ = through(Pairing)
    one, other = Stages(filters, CONTEXT), Stages(filters, CONTEXT)
    one.feed({"content": "a"})
    assert other.feed({"content": "xy"}) == {"content": "yx"}
    assert [one.close(), other.close()] == [{"content": "a"}, {}]


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ({}, {"content": "a"}, {"content": "a"}),
        ({"content": "a"}, {}, {"content": "a"}),
        ({"content": "a"}, {"content": "b"}, {"content": "ab"}),
        ({"role": "assistant", "content": "a"}, {"role": "assistant"}, {"role": "assistant", "content": "a"}),
        ({"content": "a", "tool_calls": [1]}, {"tool_calls": [2]}, {"content": "a", "tool_calls": [1, 2]}),
        ({"content": "a"}, {"content": None}, {"content": "a"}),
        ({"content": None}, {"content": "b"}, {"content": "b"}),
    ],
)
def test_two_deltas_add_up(first, second, both):
    assert joined(first, second) == both
