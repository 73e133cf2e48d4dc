"""Ambiguous windows without turn ids, and how they are merged."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filters.letters import bare
from tests.memory.call import Call, messages, missing


def called_once(greeting="a:Hello!"):
    call = Call()
    call.ask(greeting, "u:One.", answer="First.")
    call.ask(greeting, "u:One.", "a:First.", "u:Two.", answer="Second.")
    return call


# --- a second call under the same id


@pytest.mark.parametrize("words", ["Me again.", "Two.", "One."])
def test_the_greeting_again_and_first_words_begin_a_new_life(words: str):
    call = called_once()
    before = call.memory
    call.ask("a:Hello!", f"u:{words}", answer="Welcome back.")
    assert call.memory == [*before, "a:Hello!", f"u:{words}", "a?:Welcome back."]
    assert [life for life, _ in call.turns[-3:]] == [1, 1, 1]
    assert missing(call.held, messages("a:Hello!", f"u:{words}")) == ()
    call.ask("a:Hello!", f"u:{words}", "a:Welcome back.", "u:Yes.", answer="Good.")
    assert call.memory[-4:] == [f"u:{words}", "a:Welcome back.", "u:Yes.", "a?:Good."]
    assert call.held.call == 1


def test_another_greeting_and_first_words_begin_a_new_life():
    call = called_once()
    before = call.memory
    call.ask("a:Welcome back!", "u:Me again.", answer="Yes?")
    assert call.memory == [*before, "a:Welcome back!", "u:Me again.", "a?:Yes?"]
    assert call.held.call == 1


def test_a_third_call_is_a_third_life():
    call = called_once()
    for _ in range(2):
        call.ask("a:Hello!", "u:Again.", answer="Yes?")
        call.ask("a:Hello!", "u:Again.", "a:Yes?", "u:Nothing.", answer="Fine.")
        call.ask("a:Hello!", "u:Once more.", answer="Yes?")
        call.ask("a:Hello!", "u:Once more.", "a:Yes?", "u:Bye.", answer="Bye.")
    assert call.held.call == 4


def test_words_alone_take_nothing_back_and_begin_no_life():
    call = Call()
    call.ask("u:One.", answer="First.")
    call.ask("u:One.", "a:First.", "u:Two.", answer="Second.")
    before = call.memory
    call.ask("u:One.", answer="Hello.")
    assert call.memory == [*before, "u:One.", "a?:Hello."]
    assert call.held.call == 0
    call.ask("u:One.", "a:Hello.", "u:Three.", answer="Third.")
    assert call.memory == [*before, "u:One.", "a:Hello.", "u:Three.", "a?:Third."]


def test_the_first_words_in_another_form_are_no_new_life():
    call = Call()
    call.ask("a:Hello!", "u:Call Ann.", answer="Calling Ann.")
    call.ask("a:Hello!", "u:Tall man.", answer="Who?")
    assert call.memory == ["a:Hello!", "u:Tall man.", "a?:Who?"]
    assert call.held.call == 0


def test_a_window_of_two_lines_that_slides_is_no_new_life():
    call = Call()
    call.ask("a:Hello!", "u:One.", answer="First.")
    call.ask("a:First.", "u:Two.", answer="Second.")
    call.ask("a:Something of the engine's.", "u:Three.", answer="Third.")
    assert call.held.call == 0
    assert call.memory[-3:] == ["a:Something of the engine's.", "u:Three.", "a?:Third."]


# --- engines without any history


@pytest.mark.parametrize("examples", [100, pytest.param(2000, marks=pytest.mark.long)])
def test_without_any_history_memory_grows_by_a_turn_a_request(examples: int):
    said = st.sampled_from(["Yes", "No.", "Okay then", "I want", "I want a table", "What?"])

    @settings(max_examples=examples)
    @given(st.lists(st.tuples(said, st.booleans()), min_size=1, max_size=8), st.booleans())
    def check(turns, numbered):
        call, expected = Call(), []
        for number, (words, finished) in enumerate(turns):
            if numbered:
                call.ask(f"{number}u:{words}", answer=f"Answer {number}", finished=finished)
            elif expected and bare(words) == bare(expected[-2].removeprefix("u:")):
                return  # the same request
            else:
                call.ask(f"u:{words}", answer=f"Answer {number}", finished=finished)
            expected += [f"u:{words}", f"a?:Answer {number}"]
            if not numbered:
                assert call.memory == expected
        if numbered:
            assert [line for line in call.memory if line[0] == "a"][-1] == f"a?:Answer {len(turns) - 1}"

    check()


# --- an engine that is a turn behind


def test_an_answer_that_is_shown_a_turn_late_is_marked_as_cut_all_the_same():
    call = Call()
    call.ask("a:Hello!", "u:One.", answer="The first answer.")
    call.ask("a:Hello!", "u:One.", "u:Two.", answer="The second answer.")
    call.ask("a:Hello!", "u:One.", "a:The first", "u:Two.", "u:Three.", answer="The third.")
    assert call.memory == [
        "a:Hello!",
        "u:One.",
        "a:The first|The first answer.",
        "u:Two.",
        "u:Three.",
        "a?:The third.",
    ]
    call.ask("a:Hello!", "u:One.", "a:The first", "u:Two.", "a:The second", "u:Three.", "u:Four.")
    assert call.memory[4] == "a:The second|The second answer."


def test_a_turn_that_is_shown_a_turn_late_is_held_again():
    call = Call()
    call.ask("a:Hello!", "u:One.", answer="The first answer.")
    call.ask("a:Hello!", "u:Two.", answer="The second answer.")
    call.ask("a:Hello!", "u:One.", "a:The first", "u:Two.", "u:Three.", answer="The third.")
    assert call.memory[:4] == ["a:Hello!", "u:One.", "a:The first|The first answer.", "u:Two."]


# --- answers in pieces


JOKE = "Why did the scarecrow win an award? He was outstanding in his field."


@pytest.mark.parametrize(
    "replayed",
    [
        "Why did scarecrow the win an award? He was outstanding in his field.",
        "Why did the scarecrow an award? was outstanding in field.",
        "did the scarecrow win Why an award",
        "Why did the scarecrow Hello! win an award?",
    ],
)
def test_a_partly_jumbled_answer_is_the_one_that_is_held(replayed: str):
    call = Call()
    call.ask("a:Hello!", "u:A joke!", answer=JOKE)
    for words in ["Stop.", "Another."]:
        call.ask("a:Hello!", "u:A joke!", f"a:{replayed}", f"u:{words}", answer="Fine.")
        assert len(call.memory) == 5
        assert call.memory[1] == "u:A joke!"
    assert call.held.entries[2].generated == JOKE or call.held.entries[2].text == replayed


# --- short words again and again


def test_short_words_in_a_window_that_slides_are_the_newest():
    call = Call()
    history = []
    for number, words in enumerate(["Yes", "Yes", "Okay", "Yes", "Yes", "Yes"]):
        history += messages(f"u:{words}")
        call.ask(*history[-4:], answer=f"Answer {number}")
        history += messages(f"a:Answer {number}")
    assert [line.replace("?", "") for line in call.memory] == [f"{m.role[0]}:{m.text}" for m in history]


def test_a_window_of_equal_words_without_any_answer_is_asked_again_as_it_was():
    call = Call()
    for count in (1, 2, 3):
        window = ["u:Okay."] * count
        call.ask(*window, answer=f"Answer {count}")
        held = call.memory
        assert missing(call.held, messages(*window)) == ()
        call.ask(*window, answer=f"Answer {count}")
        assert call.memory == held


@pytest.mark.parametrize("size", [3, 4])
def test_words_of_failed_turns_take_nothing_back_though_one_of_them_was_said_before(size):
    call, lines = Call(), []
    for number, words in enumerate(["Hello.", "Yes.", "Tell me more.", "What is it?", "Go on.", "Why so?"]):
        lines.append(f"u:{words}")
        call.ask(*lines[-size:], answer=f"Answer {number}.")
        lines.append(f"a:Answer {number}.")
    before = call.memory
    failed = ["u:Yes.", "u:Are you there?", "u:Well?"]
    call.ask(*failed)
    assert call.memory == [*before, *failed]


def test_an_answer_that_a_window_slides_past_without_showing_it_was_not_heard():
    call = Call()
    call.ask("u:One.", answer="Here is one.")
    call.ask("a:Here is one.", "u:Two.", answer="Here are two.")
    call.ask("u:Two.", "u:Three.")
    assert call.memory == ["u:One.", "a:Here is one.", "u:Two.", "u:Three."]
