import pytest

from filters.message import Message
from proxy.memory.align.line import Line, repeats, similarity
from proxy.memory.wording import continues, continues_by_words, reordered, same_words, shares_words

THUMB, HEART = "\N{THUMBS UP SIGN}", "\N{HEAVY BLACK HEART}\N{VARIATION SELECTOR-16}"

OTHERS = [
    (THUMB, HEART),
    ("...", THUMB),
    ("パリ", "バリ"),
    ("父はパリにいる", "父はバリにいる"),
    ("उसका बेटा है", "उसकी बेटी है"),
    ("เขาชอบเสือ", "เขาชอบเสื้อ"),
]


@pytest.mark.parametrize(("one", "other"), OTHERS)
def test_other_words_are_not_the_same_nor_the_same_in_another_order(one, other):
    assert not same_words(one, other)
    assert not reordered(one, other)


@pytest.mark.parametrize(("one", "other"), OTHERS)
def test_an_answer_in_other_words_is_another_answer(one, other):
    lines = [Line(Message(role="assistant", content=text)) for text in (one, other)]
    assert similarity(*lines) == 0
    assert not repeats(one, lines[1])


def test_words_are_the_same_in_another_case_and_with_other_marks():
    assert same_words("Un café, bitte!", "un cafe bitte")
    assert same_words(THUMB, THUMB)
    assert continues("Un café, bitte!", "un caf")
    assert not continues("Hello", THUMB)


@pytest.mark.parametrize(
    ("text", "start", "whole"),
    [
        ("Not now", "No", False),
        ("50 euros", "5", False),
        ("No, not now", "No.", True),
        ("Yes please", "yes", True),
        ("Café, bitte", "cafe", True),
        ("好的", "好", True),
        ("ครับผม", "ครับ", True),
        ("है नहीं", "है", True),
        ("Yes", "Yes please", False),
    ],
)
def test_words_are_taken_up_at_the_end_of_a_word_where_words_are_told_apart(text, start, whole):
    assert continues_by_words(text, start) == whole


def test_words_may_be_out_of_order():
    assert reordered("said I yes", "I said yes")
    assert reordered("बेटा है", "है बेटा")
    assert not shares_words("बेटा वह मेरा", "बेटी वही मेरी")
