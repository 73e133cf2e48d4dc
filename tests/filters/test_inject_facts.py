import pytest

from filters.base import Context, Snapshot
from filters.inject_facts import InjectFacts
from filters.injection import Remembered
from filters.message import Message


def fact_lines(prompt, *facts):
    remembered = tuple(Remembered(kind="fact", text=text) for text in facts)
    messages = [Message(role="system", content=prompt), Message(role="user", content="Hi")]
    done = InjectFacts().apply(messages, Context(now=0.0, memory=Snapshot(facts=remembered)))
    return "\n".join(message.text for message in done[1:-1]).splitlines()[2:-1]


@pytest.mark.parametrize(
    ("prompt", "fact"),
    [
        ("Offer vegetarian dishes", "Vegetarian."),
        ("Ask who takes 15 mg of warfarin.", "Takes 1.5 mg of warfarin."),
        ("You speak C++.", "C"),
        ("父はバリにいる。", "父はパリにいる。"),
        ("Be kind.", "\N{THUMBS UP SIGN}"),
    ],
)
def test_letters_that_merely_occur_in_the_prompt_hide_no_fact(prompt, fact):
    assert fact_lines(prompt, fact) == [fact]


def test_what_the_client_took_from_memory_is_not_told_again():
    prompt = "<facts>\nKnown of the user.\nLikes \u2039b\u203a.\nIs called Ann.\n</facts>"
    assert fact_lines(prompt, "Is called Ann.", "Likes <b>.", "Has a dog.") == ["Has a dog."]


def test_of_a_fact_that_is_cut_all_of_it_is_compared():
    long = "Likes " + "tea and " * 100
    assert fact_lines(f"{long[:300]}\n", long) == [long[:300].strip()]
    assert fact_lines(f"Be brief.\n{long}\n", long) == []
