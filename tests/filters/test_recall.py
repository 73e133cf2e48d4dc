import pytest

from filters.base import Context, Snapshot
from filters.injection import Remembered
from filters.message import Message
from filters.recall import Recall


def recalled_lines(*recalled, messages=()):
    remembered = tuple(Remembered(kind="turn", role="user", text=text) for text in recalled)
    talk = [*messages, Message(role="user", content="What should I eat?")]
    done = Recall().apply(talk, Context(now=0.0, memory=Snapshot(recalled=remembered)))
    lines = done[-1].text.splitlines()[2:-3]
    return [line.removeprefix("the caller said: ") for line in lines]


def a_message(role, text):
    return Message(role=role, content=text)


@pytest.mark.parametrize(
    ("shown", "turn"),
    [
        ("Offer vegan dishes.", "Vegan."),
        ("She takes 15 mg.", "She takes 1.5 mg."),
        ("父はバリにいる。", "父はパリにいる。"),
    ],
)
def test_letters_that_merely_occur_in_the_conversation_hide_no_turn(shown, turn):
    assert recalled_lines(turn, messages=[a_message("system", shown)]) == [turn]


@pytest.mark.parametrize("shown", ["i am  VEGAN", "[10:30] ann: I am vegan.", "Hi. I am vegan. What now?"])
def test_a_whole_message_or_sentence_is_not_told_again(shown):
    assert recalled_lines("I am vegan.", messages=[a_message("user", shown)]) == []


def test_turns_that_differ_in_a_mark_are_both_told():
    assert recalled_lines("Takes 1.5 mg.", "Takes 15 mg.", "takes 15  mg.") == [
        "Takes 1.5 mg.",
        "Takes 15 mg.",
    ]


def test_what_holds_no_word_is_not_told():
    assert recalled_lines("...", " ") == []
