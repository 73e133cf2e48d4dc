import pytest
from pydantic import ValidationError

from filters.base import Context
from filters.hide_reasoning import HideReasoning
from tests.answers import answer_text

CONTEXT = Context(now=0.0)


def shown(text, **options):
    step = HideReasoning(**options)
    whole = answer_text(step, [text], CONTEXT)
    assert answer_text(step, text, CONTEXT) == whole
    return whole


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>a</think>b", "b"),
        (" \n<THINK >a<b></thinking></Think\n>\n\n b", "b"),
        ("<think>a</think><reasoning>b</reasoning> c", "c"),
        ("<think></think>\n\nb", "b"),
        ("<think>a", ""),
        ("<think>a</think", ""),
        ("<think", "<think"),
        ("<thinker>a", "<thinker>a"),
        ("\n <b>a</b>", "\n <b>a</b>"),
        ("a <think>b</think> c", "a <think>b</think> c"),
        ("</think>a", "</think>a"),
    ],
)
def test_tags_count_before_the_first_word(text, expected):
    assert shown(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a <think>b</think> c <thinking>d</thinking>e", "a c e"),
        ("a < b, <thin k> <think", "a < b, <thin k> <think"),
        ("a <think>b", "a "),
        ("<<think>b</think>c", "<c"),
    ],
)
def test_tags_count_anywhere_where_that_is_asked_for(text, expected):
    assert shown(text, where="anywhere") == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("a</think>\n b", "b"), ("a", ""), ("<think>a</think>b<think>", "b<think>")]
)
def test_an_answer_may_begin_inside(text, expected):
    assert shown(text, opened=True) == expected


def test_tags_are_those_that_are_named():
    assert shown("<think>a</think>b", tags=["Plan"]) == "<think>a</think>b"
    assert shown("<plan>a</PLAN>b", tags=["Plan"]) == "b"
    assert shown("<think>a</think>b", tags=[]) == "<think>a</think>b"


def test_fields_of_reasoning_go_and_others_stay():
    stage = HideReasoning().open(CONTEXT)
    delta = {"role": "assistant", "reasoning_content": "a", "reasoning": "b", "thinking_blocks": [], "x": 1}
    assert stage.feed(delta) == {"role": "assistant", "x": 1}
    assert stage.feed({"reasoning_details": [{}]}) == {}
    kept = {"reasoning": "a", "content": "b"}
    assert HideReasoning(fields=[]).open(CONTEXT).feed(kept) is kept


def test_a_word_passes_at_once_when_it_opens_no_tag():
    stage = HideReasoning().open(CONTEXT)
    for text in ["Well", ", a < b", " <think>"]:
        delta = {"content": text}
        assert stage.feed(delta) is delta


@pytest.mark.parametrize("options", [{"tags": ["a b"]}, {"tags": [""]}, {"tags": [".*"]}, {"where": "end"}])
def test_a_setting_that_cannot_work_is_a_fault(options):
    with pytest.raises(ValidationError):
        HideReasoning(**options)
