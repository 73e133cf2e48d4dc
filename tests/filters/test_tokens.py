"""Estimates beside counts that the o200k vocabulary gives."""

import pytest

from filters.tokens import in_message, in_text
from tests.conversations import message_of


@pytest.mark.parametrize(
    ("text", "tokens", "off"),
    [
        ("", 0, 0),
        ("a", 1, 0),
        ("hello world", 2, 1),
        ("tiktoken is great!", 6, 2),
        ("お誕生日おめでとう", 7, 1),
    ],
)
def test_a_text_is_about_as_long_as_a_tokenizer_says(text, tokens, off):
    assert abs(in_text(text) - tokens) <= off


@pytest.mark.parametrize("script", ["公园", "こん", "안녕", "ﾊﾛ", "𠮷野"])
def test_wide_scripts_weigh_more_than_others(script):
    assert in_text(script * 100) > in_text("да" * 100) > in_text("da" * 100)


def test_a_message_is_more_than_its_words():
    said = message_of({"role": "user", "content": "a" * 46})
    assert in_message(said) == 4 + 10


def test_a_picture_costs_and_so_do_the_arguments_of_a_call():
    words = {"type": "text", "text": "a" * 46}
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    assert 500 < in_message(message_of({"role": "user", "content": [words, picture]})) - 14 < 1500
    function = {"name": "find", "arguments": "a" * 460}
    call = {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}
    assert in_message(message_of(call)) > 100
    assert in_message(message_of({"role": "assistant", "tool_calls": [{"function": None}]})) < 20
