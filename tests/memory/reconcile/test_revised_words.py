"""Words that are sent again in fuller form: one turn until their answer can have been spoken, then two."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory.call import Call, calling, messages, missing, result

NORMAL = pytest.param(200, id="200 calls")
LONG = pytest.param(2000, id="2000 calls", marks=[pytest.mark.long, pytest.mark.timeout(600)])
TOOK = 1.0
A_SECOND = 15
"""So many characters are spoken."""

REST = ["a table", "for four,", "at eight", "please.", "好的", "by the window", "tomorrow", "Yes"]
FIRST = ["Book", "Where", "Yes", "No", "好", "Hello", "Well", "So"]


@st.composite
def turns(draw):
    """Words, their answer, how it ends, and whether the words before are gone on from, and how soon.

    What is sooner or later than the answer can have been spoken is so by a fifth of that time.
    """
    said, words, number = [], "", 0
    for _ in range(draw(st.integers(1, 8))):
        extends = bool(said) and draw(st.booleans())
        if not extends:
            number += 1
            words = f"{draw(st.sampled_from(FIRST))} {number}"
        else:
            words = f"{words} {draw(st.sampled_from(REST))}"
        soon = draw(st.booleans())
        share = draw(st.floats(0, 0.8)) if soon else draw(st.floats(1.2, 9))
        speaking = len(said[-1][1]) / A_SECOND if said else 0.0
        pause = speaking * share + (0.0 if soon else 0.4)
        if soon and draw(st.integers(0, 3)) == 0:
            pause = -draw(st.floats(0, TOOK / 2))
        answer = f"Answer {len(said)} {'to that ' * draw(st.integers(0, 30))}".strip()
        hung_up = draw(st.integers(0, 3)) == 0
        said.append((words, answer, hung_up, extends and soon, pause))
    return said


@pytest.mark.parametrize("examples", [NORMAL, LONG])
def test_words_alone_that_go_on_from_the_last_ones_are_one_turn_until_these_can_have_been_answered(
    examples: int,
):
    @settings(max_examples=examples)
    @given(turns(), st.booleans())
    def check(said, numbered):
        call, truth = Call(), []
        for number, (words, answer, hung_up, revises, pause) in enumerate(said):
            if revises:
                del truth[-2:]
            line = f"{number}u:{words}" if numbered else f"u:{words}"
            before = missing(call.held, messages(line), at=call.ended + pause)
            assert [text_of(shown) for shown in truth] == [message.text for message in before]
            call.ask(line, answer=answer, hung_up=hung_up, pause=pause)
            truth += [f"u:{words}", f"a{'/' * hung_up}?:{answer}"]
            assert call.memory == truth

    check()


def text_of(line):
    return line.partition(":")[2]


@pytest.mark.parametrize("pause", [-0.5, 0.5, 60.0])
def test_words_that_a_window_shows_in_the_place_of_others_revise_them_at_any_time(pause: float):
    call = Call()
    call.ask("u:Hello.", answer="Hi.")
    call.ask("u:Hello.", "a:Hi.", "u:Book a table", answer="For how many?")
    call.ask("u:Hello.", "a:Hi.", "u:Book a table for four", answer="For four.", pause=pause)
    assert call.memory == ["u:Hello.", "a:Hi.", "u:Book a table for four", "a?:For four."]


def test_an_answer_that_a_window_has_shown_was_spoken():
    call = Call()
    call.ask("u:Yes.", answer="At seven, with pleasure?")
    call.ask("a:At seven, with pleasure?", "u:Yes.", answer="Then at eight, or rather at nine?")
    call.ask("a:Then at eight, or rather at nine?", pause=0.1)
    call.ask("u:Yes, please.", answer="Fine.", pause=0.1)
    assert call.memory[-4:] == ["u:Yes.", "a:Then at eight, or rather at nine?", "u:Yes, please.", "a?:Fine."]


def test_what_a_tool_was_called_for_is_not_revised():
    call = Call()
    call.ask("u:Cancel it", tool_calls=calling("x").tool_calls)
    call.ask("u:Cancel it all", answer="Done.", pause=0.1)
    assert call.memory == ["u:Cancel it", "calls x", "u:Cancel it all", "a?:Done."]


@pytest.mark.parametrize("pause", [0.1, 9.0])
def test_words_that_nobody_answered_are_gone_on_from_at_any_time(pause: float):
    call = Call()
    call.ask("u:Book a table")
    call.ask("u:Book a table for four", answer="For four.", pause=pause)
    assert call.memory == ["u:Book a table for four", "a?:For four."]


@pytest.mark.parametrize(("words", "turns"), [("Not now", 2), ("No, not now", 1)])
def test_behind_a_whole_answer_no_word_is_gone_on_from_in_its_middle(words: str, turns: int):
    call = Call()
    call.ask("u:No", answer="What a pity, and why is that?")
    call.ask(f"u:{words}", answer="Fine.", pause=0.5)
    assert len(call.memory) == 2 * turns


@pytest.mark.parametrize("shown", [[calling("x"), result("x")], [result("x")]])
def test_words_that_are_glued_behind_what_a_tool_returned_count_once(shown):
    call = Call()
    call.ask("u:Look.", tool_calls=calling("x").tool_calls)
    call.ask("u:Look.", calling("x"), result("x"), "u:Book a table")
    call.ask(*shown, "u:Book a table for four.", answer="Sure.")
    assert call.memory == ["u:Look.", "calls x", "result x", "u:Book a table for four.", "a?:Sure."]


@pytest.mark.parametrize("pause", [0.1, 9.0])
def test_a_window_of_two_lines_shows_words_in_fuller_form_though_their_answer_was_alike(pause: float):
    call = Call()
    call.ask("u:Hello.", answer="Well, yes, good day to you.")
    call.ask("a:Well, yes, good", "u:Book a table", answer="Yes, well, a good place for two?", pause=pause)
    call.ask("a:Well, yes, good", "u:Book a table for four.", answer="Sure.", pause=pause)
    assert call.memory[2:] == ["u:Book a table for four.", "a?:Sure."]
