import pytest

from filters.base import Context
from filters.redact import Redact
from tests.answers import answer_text
from tests.conversations import message_of

CONTEXT = Context(now=0.0)
TEXTS = [
    "Mail ann@example.org, or ann.b@example.co.uk. Call +49 170 1234567 or (212) 555-0123!",
    "Card 4111 1111 1111 1111, IBAN DE89 3704 0044 0532 0130 00 and 192.0.2.1, 2001:db8::1.",
    "Nothing here: 20.11.2026, 1234567890, a@b, 1.2.3, C#, 好的。ann@example.org好",
    "a@b.de" * 20,
    "Order #0301234567, x=0170 1234567, 12:0301234567, _4111111111111111 or .192.0.2.1",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kinds", [["email"], ["card", "iban", "ip", "phone"], ["email", "phone", "card"]])
def test_an_answer_is_redacted_as_a_message_is(text, kinds):
    step = Redact(kinds=kinds)
    expected = step.apply([message_of({"role": "assistant", "content": text})], CONTEXT)[0].content
    assert answer_text(step, [text], CONTEXT) == expected
    assert answer_text(step, text, CONTEXT) == expected
    for cut in range(len(text)):
        assert answer_text(step, [text[:cut], text[cut:]], CONTEXT) == expected


def test_own_patterns_are_redacted_in_answers_too():
    step = Redact(kinds=[], patterns={"order": "ORD-[0-9]{1,6}"}, max_length=10)
    assert answer_text(step, "Your ORD-4711 and ORD-123456789.", CONTEXT) == "Your [order] and [order]789."


def test_what_the_assistant_says_stays_where_its_role_is_left_out():
    assert Redact(roles=["user"]).open(CONTEXT) is None


def test_a_number_is_held_back_until_it_is_known():
    stage = Redact(kinds=["phone"]).open(CONTEXT)
    told = ["Call", " now:", " +49 1", "70 123", "4567", " please", "."]
    shown = [stage.feed({"content": text})["content"] for text in told]
    assert "".join(shown) + stage.close().get("content", "") == "Call now: [phone] please."
    assert shown[0] == "Call"
    assert not any(digit in "".join(shown) for digit in "1234567")


def test_words_pass_as_the_very_same_object_where_no_address_is_looked_for():
    stage = Redact(kinds=["card"]).open(CONTEXT)
    for text in ["The", " weather", ", warm."]:
        delta = {"content": text}
        assert stage.feed(delta) is delta
