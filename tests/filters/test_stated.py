import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.injection import Stated, comparable


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("Is vegetarian.", "Is vegetarian."),
        ("is  VEGETARIAN", "Is vegetarian."),
        ("You are Max.\nIs called Ann.\nBe brief.", "Is called Ann."),
        ("You are Max.\r\n - Is called Ann\r\n", "Is called Ann."),
        ("Known:\n* Is called Ann\n\u2022 Likes tea", "Likes tea!"),
        ("1. Is called Ann.\n2. Likes tea.", "Likes tea."),
        ("Be brief. Is called Ann. Be kind.", "Is called Ann."),
        ("Be brief! Is called Ann. Likes tea.", "Is called Ann. Likes tea."),
        ("短く。名前はアンです。親切に。", "名前はアンです。"),
        (
            "Wohnt in Mu\N{COMBINING DIAERESIS}nchen.",
            "Wohnt in M\N{LATIN SMALL LETTER U WITH DIAERESIS}nchen.",
        ),
        ("Will it rain? Be brief.", "Will it rain?"),
        ("Talks of dogs and cats.\nDogs", "dogs"),
        ("One line.\nAnother line.", "One line.\nAnother line."),
    ],
)
def test_what_stands_as_a_sentence_or_a_line_is_stated(text, statement):
    assert Stated([text]).contains(statement)
    assert Stated(["Other.", text, "Other."]).contains(statement)


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("Offer vegetarian dishes", "Vegetarian."),
        ("Never call her vegetarian.", "Vegetarian."),
        ("Vegetarian dishes are off.", "Vegetarian."),
        ("Lives in Berlin, not in Paris.", "Lives in Berlin."),
        ("Takes 15 mg.", "Takes 1.5 mg."),
        ("Takes 1.5 mg.", "Takes 1."),
        ("Takes 1.5 mg.", "5 mg."),
        ("Likes C++.", "Likes C."),
        ("Balance is 5.50", "Balance is 5."),
        ("-5", "5"),
        ("Is vegan?", "Is vegan."),
        ("父はバリにいる。", "父はパリにいる。"),
        ("उसकी बेटी है", "उसका बेटा है"),
        ("Is called\nAnn.", "Ann and Is called"),
        ("", "Is called Ann."),
        ("Is called Ann.", ""),
        ("Is called Ann...", "..."),
        ("[10:30] Is vegan.", "Is vegan."),
        ("\N{THUMBS UP SIGN}", "\N{HEAVY BLACK HEART}"),
    ],
)
def test_what_merely_occurs_is_not_stated(text, statement):
    assert not Stated([text]).contains(statement)


@pytest.mark.parametrize(
    "text",
    [
        "[10:30] My dog is called Rex.",
        "ann: my dog is called rex",
        "(+00:02) [someone, asr] My dog is called Rex",
        "My dog is called Rex [interrupted here; the caller did not hear: and]",
        "<recall>\n2023-03-15 the caller said: My dog is called Rex.\n</recall>\n\nHi.",
    ],
)
def test_what_steps_put_beside_words_leaves_them_as_they_are(text):
    assert Stated([text], annotated=True).contains("My dog is called Rex.")


@given(st.lists(st.text(max_size=20), max_size=4), st.text(max_size=20))
def test_each_text_states_itself(texts, statement):
    if comparable(statement).strip(".!\u2026\u3002\uff01 "):
        assert Stated([*texts, statement]).contains(statement)
    Stated(texts).contains(statement)


def test_a_long_text_that_says_it_over_and_over_takes_no_time():
    said = Stated(["a " * 50_000])
    began = time.process_time()
    assert not said.contains("a")
    assert not said.contains("a " * 20_000 + "b")
    assert time.process_time() - began < 1
