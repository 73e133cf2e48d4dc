import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from filters.letters import WORD, bare

MARKS_OF_SCRIPTS = (  # Devanagari to Sinhala, Thai, Lao, Myanmar, Khmer, kana
    *range(0x0900, 0x0E00),
    *range(0x0E00, 0x0F00),
    *range(0x1000, 0x10A0),
    *range(0x1780, 0x1800),
    *range(0x3099, 0x309B),
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Un café", "un cafe"),
        ("Ça va?", "ca va"),
        ("Don't - stop…", "dont stop"),
        ("Việt Nam", "viet nam"),
        ("ДЕЙ", "деи"),
        ("Grüße", "GRUSSE"),
        ("I \N{HEAVY BLACK HEART}\N{VARIATION SELECTOR-16} you", "I you"),
        ("snake_case", "snake case"),
        ("\N{HALFWIDTH KATAKANA LETTER HA}\N{HALFWIDTH KATAKANA SEMI-VOICED SOUND MARK}リ", "パリ"),
        ("नमस्ते।", "नमस्ते"),
        ("مرحباً", "مرحبا"),
    ],
)
def test_case_accents_and_punctuation_are_not_heard(one, other):
    assert bare(one) == bare(other)
    assert bare(unicodedata.normalize("NFD", one)) == bare(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("パリ", "バリ"), ("はは", "ばば"), ("बेटा", "बेटी"), ("उसका", "उसकी"), ("เสือ", "เสื้อ"), ("ਸਤ", "ਸਤਿ")],
)
def test_signs_that_make_another_word_are_heard(one, other):
    assert bare(one) != bare(other)
    assert bare(unicodedata.normalize("NFD", one)) == bare(one)
    assert WORD.findall(one) == [one]


def test_the_marks_of_scripts_that_write_sounds_with_them_stay_and_symbols_go():
    for code in range(0x110000):
        character = chr(code)
        category = unicodedata.category(character)
        if category in {"Mn", "Mc"}:
            assert code not in MARKS_OF_SCRIPTS or bare(character), hex(code)
        elif category != "Cn" and not _holds_a_letter(character):
            assert bare(f"a{character}b") in {"ab", f"a{bare(character)}b"}, hex(code)
            assert not bare(character) or code in {0x309B, 0x309C}, hex(code)  # stand for U+3099 and U+309A


@given(st.text())
@example("\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}")
def test_what_is_bare_stays_as_it_is(text):
    assert bare(bare(text)) == bare(text)


@given(st.text(alphabet=st.characters(max_codepoint=0x2FF) | st.characters(codec="cp1252")))
def test_plain_text_is_no_case_of_its_own(text):
    assert bare(text) + "\N{HIRAGANA LETTER A}" == bare(text + "\N{HIRAGANA LETTER A}")


def _holds_a_letter(character):
    return character.isalnum() or any(map(str.isalnum, unicodedata.normalize("NFKD", character)))
