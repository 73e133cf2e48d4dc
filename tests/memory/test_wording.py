import pytest

from filters.message import Message
from proxy.memory.line import Line, kinship, says_again
from proxy.memory.wording import alike, goes_on, jumbled, same

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
    assert not same(one, other)
    assert not jumbled(one, other)


@pytest.mark.parametrize(("one", "other"), OTHERS)
def test_an_answer_in_other_words_is_another_answer(one, other):
    lines = [Line(Message(role="assistant", content=text)) for text in (one, other)]
    assert kinship(*lines) == 0
    assert not says_again(one, lines[1])


def test_words_are_the_same_in_another_case_and_with_other_marks():
    assert same("Un café, bitte!", "un cafe bitte")
    assert same(THUMB, THUMB)
    assert goes_on("Un café, bitte!", "un caf")
    assert not goes_on("Hello", THUMB)


def test_words_may_be_out_of_order():
    assert jumbled("said I yes", "I said yes")
    assert jumbled("बेटा है", "है बेटा")
    assert not alike("बेटा वह मेरा", "बेटी वही मेरी")
