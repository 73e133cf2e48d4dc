"""``rewrite``: which text it replaces, and which options are errors."""

import time

import pytest

from filters.base import Context
from filters.rewrite import Rewrite
from tests.conversations import messages_of


def rewritten(content, *replace, role="user"):
    step = Rewrite(replace=[{"pattern": p, "with": w} for p, w in replace])
    (shown,) = step.apply(messages_of([{"role": role, "content": content}]), Context(now=0.0))
    return shown.content


@pytest.mark.parametrize(
    ("with_", "shown"),
    [
        (r"\2 \1", "wörld hello"),
        (r"<\0>", "<hello wörld>"),
        (r"ä\\1", r"ä\1"),
        (r"\3", ""),
        ("{0} $1", "{0} $1"),
    ],
)
def test_a_replacement_may_hold_groups(with_, shown):
    assert rewritten("hello wörld", (r"(\pL+) (\pL+)(!)?", with_)) == shown


def test_replacements_run_in_order():
    assert rewritten("a", ("a", "b"), ("b", "c")) == "c"


def test_each_part_is_rewritten_and_an_emptied_one_goes():
    picture = {"type": "image_url", "image_url": {"url": "a"}}
    content = [{"type": "text", "text": "a"}, picture, {"type": "text", "text": "ba"}]
    assert rewritten(content, ("a", "")) == [picture, {"type": "text", "text": "b"}]


def test_a_message_that_loses_its_words_stays():
    assert rewritten("a", ("a", "")) == ""


@pytest.mark.parametrize("content", [None, "", [], "other", [{"type": "text", "text": ""}]])
def test_what_does_not_match_is_the_same_object(content):
    told = messages_of([{"role": "user", "content": content}])
    assert Rewrite(replace=[{"pattern": "a", "with": "b"}]).apply(told, Context(now=0.0)) is told


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        ("(a", r"'\(a' is not a valid RE2 pattern: missing \)"),
        ("(?=a)", "invalid perl operator.*look-around"),
        ("a{2000}", "repetition size"),
    ],
)
def test_a_pattern_that_is_refused_tells_its_fault(pattern, fault):
    with pytest.raises(ValueError, match=fault):
        Rewrite(replace=[{"pattern": pattern, "with": ""}])


@pytest.mark.parametrize(
    ("with_", "fault"),
    [(r"\2", "names group 2, and the pattern has 1"), (r"\n", "means nothing"), ("\\", "means")],
)
def test_a_replacement_that_cannot_be_made_tells_its_fault(with_, fault):
    with pytest.raises(ValueError, match=fault):
        Rewrite(replace=[{"pattern": "(a)", "with": with_}])


def test_something_must_be_replaced():
    with pytest.raises(ValueError, match="at least 1"):
        Rewrite(replace=[])


def test_half_a_character_is_no_fault():
    assert rewritten("\ud800a", ("a", "b")) == "\ud800b"


def test_a_pattern_that_backtracks_elsewhere_does_not_here():
    started = time.thread_time()
    rewritten("a" * 10_000, ("(a*)*b", ""))
    assert time.thread_time() - started < 1
