import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.letters import unheard

COMMA = "\N{FULLWIDTH COMMA}"

JOKE = "Why did the scarecrow win an award? Because he was outstanding!"


@pytest.mark.parametrize(
    ("heard", "rest"),
    [
        ("", JOKE),
        ("...", JOKE),
        ("Why did the scarecrow ", "win an award? Because he was outstanding!"),
        ("Why did the scarecrow", "win an award? Because he was outstanding!"),
        ("why DID the, scarecrow...", "win an award? Because he was outstanding!"),
        ("  Why   did\nthe scarecrow…", "win an award? Because he was outstanding!"),
        ("Why did the scare", "scarecrow win an award? Because he was outstanding!"),
        ("Why did the scare...", "scarecrow win an award? Because he was outstanding!"),
        ("Why did the scarecrow win an award", "Because he was outstanding!"),
        (JOKE, ""),
        (JOKE.rstrip("!"), ""),
        (JOKE + " Ha!", ""),
        ("Once upon a time", ""),
    ],
)
def test_the_rest_follows_what_was_heard(heard, rest):
    assert unheard(heard, JOKE) == rest


@pytest.mark.parametrize(
    ("heard", "original", "rest"),
    [
        ("从前有", f"从前有座山{COMMA}山里有座庙。", f"座山{COMMA}山里有座庙。"),
        (f"从前{COMMA}有座山", f"从前有座山{COMMA}山里有座庙。", f"{COMMA}山里有座庙。"),
        ("我用 wor", "我用 word 写", "word 写"),
        ("打开wor", "打开word吧", "word吧"),
        ("หวัดดี", "หวัดดีครับ", "ครับ"),
        ("བཀྲ་ཤིས་", "བཀྲ་ཤིས་བདེ་ལེགས", "བདེ་ལེགས"),
        ("नमस्ते आप", "नमस्ते आप कैसे हैं?", "कैसे हैं?"),
        ("Un cafe con", "Un café con leche", "leche"),
        ("안녕 하", "안녕 하세요 여러분", "하세요 여러분"),
        ("Sure Heres", "**Sure!** Here's a list: - one", "a list: - one"),
        ("one", "one - two", "two"),
        ("One", "one - two", "two"),
        ("one", "one -", ""),
        ("a", "", ""),
    ],
)
def test_scripts_and_marks_are_no_obstacle(heard, original, rest):
    assert unheard(heard, original) == rest


@given(words=st.lists(st.from_regex(r"[a-z]{1,8}[.,!?]?", fullmatch=True), min_size=1), data=st.data())
def test_nothing_is_lost_between_what_was_heard_and_the_rest(words, data):
    cut = data.draw(st.integers(0, len(words)))
    spoken = " ".join(words[:cut]).title().replace(",", " …")
    assert unheard(spoken, " ".join(words)) == " ".join(words[cut:])


@given(heard=st.text(), original=st.text())
def test_the_rest_is_an_end_of_the_original(heard, original):
    assert original.strip().endswith(unheard(heard, original))
