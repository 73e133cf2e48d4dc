"""Texts in which nothing is found are searched once, and none of their words is remembered."""

import gc
import time
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.base import Context
from filters.redact import Redact
from filters.rewrite import Rewrite
from filters.text import pattern
from filters.text.pattern import Replacer
from filters.text.personal import Sensitive
from tests.conversations import messages_of

CONTEXT = Context(now=0.0)
ORDERS = {"patterns": {"order": "ORD-[0-9]+"}}
STEPS = {
    "redact": lambda: Redact(**ORDERS),
    "rewrite": lambda: Rewrite(
        replace=[{"pattern": "lamp", "with": "desk"}, {"pattern": "desks?", "with": ""}],
        roles=["user", "assistant"],
    ),
}
every_step = pytest.mark.parametrize("made", STEPS.values(), ids=STEPS)

texts = st.sampled_from(
    [
        "I need a lamp.",
        "It is ORD-17, on desk 3.",
        "Write to ann@example.org.",
        "My card is 4111 1111 1111 1111!",
        b"My card is 4111 1111 1111 1111!".decode("utf-16-le", "replace"),
        "你好",
        "\ud800",
        "",
    ]
)
messages = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": texts}),
    st.builds(lambda text: {"role": "user", "content": [{"type": "text", "text": text}]}, texts),
    st.builds(
        lambda text, original: {"role": "assistant", "content": text, "metadata": {"original": original}},
        texts,
        texts,
    ),
)
windows = st.lists(st.lists(messages, max_size=5), max_size=6)


class Searched(list[str]):
    """The texts that were searched; an ``x`` is replaced."""

    def __call__(self, text):
        self.append(text)
        return text.replace("x", "y") if "x" in text else text


def user_messages(*texts):
    return messages_of([{"role": "user", "content": text} for text in texts])


@every_step
@given(windows=windows)
def test_a_window_after_others_comes_out_as_if_it_were_the_first(made, windows):
    step = made()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pattern, "_GENERATION", 3)
        for window in windows:
            assert step.apply(messages_of(window), CONTEXT) == made().apply(messages_of(window), CONTEXT)


def test_of_a_window_that_goes_on_the_new_texts_are_searched(monkeypatch):
    searched = []
    search = Sensitive.marked
    monkeypatch.setattr(
        Sensitive, "marked", lambda self, text, *rest: searched.append(text) or search(self, text, *rest)
    )
    step, window = Redact(**ORDERS), [f"It is lamp {n}." for n in range(60)]
    step.apply(user_messages(*window), CONTEXT)
    assert searched == window
    searched.clear()
    step.apply(user_messages(*window[2:], "Thank you.", "Bye."), CONTEXT)
    assert searched == ["Thank you.", "Bye."]


def test_a_text_in_which_something_was_found_is_searched_again():
    searched = Searched()
    replaced = Replacer(searched)
    assert [replaced(text) for text in ("box", "bag", "box", "bag")] == ["boy", "bag", "boy", "bag"]
    assert searched == ["box", "bag", "box"]


def test_a_text_that_takes_long_to_hash_is_searched_again():
    searched = Searched()
    replaced, text = Replacer(searched), "a" * 1_000_001
    assert replaced(text) is replaced(text) is text
    assert len(searched) == 2


def test_a_text_without_a_find_is_the_very_same_object():
    replaced, text = Replacer(Searched()), "a bag"
    assert replaced(text) is text
    again = f"{text:s}"[:3] + "ag"
    assert replaced(again) is again


def test_a_bounded_number_is_remembered_and_what_recurs_is_not_searched_again(monkeypatch):
    monkeypatch.setattr(pattern, "_GENERATION", 10)
    searched = Searched()
    replaced = Replacer(searched)
    for number in range(1000):
        replaced("recurs")
        replaced(f"lamp {number}")
        assert len(replaced._recent | replaced._older) <= 20
    assert searched.count("recurs") == 1
    searched.clear()
    for number in range(1000 - 9, 1000):
        replaced(f"lamp {number}")
    assert searched == []
    replaced("lamp 0")
    assert searched == ["lamp 0"]


@every_step
def test_no_word_is_held(made):
    step = made()
    step.apply(user_messages("My parrot is called Ferdinand.", "My parrot is with ann@example.org."), CONTEXT)
    values = [value for value in reachable_values(step) if isinstance(value, str | bytes)]
    assert values
    assert not [value for value in values if "parrot" in str(value) or "Ferdinand" in str(value)]


def reachable_values(root):
    """All values that can be reached from one; of functions what they close over, and nothing of modules."""
    values, pending = {}, [root]
    while pending:
        value = pending.pop()
        if id(value) in values or isinstance(value, type | types.ModuleType | types.CodeType):
            continue
        values[id(value)] = value
        is_function = isinstance(value, types.FunctionType)
        pending += (value.__closure__ or ()) if is_function else gc.get_referents(value)
    return list(values.values())


def test_steps_know_nothing_of_each_others_texts():
    text = "It is ORD-17."
    first, second = Redact(), Redact(**ORDERS)
    assert [step.apply(user_messages(text), CONTEXT)[0].content for step in (first, second, first)] == [
        text,
        "It is [order].",
        text,
    ]


def test_hashes_are_secret_in_each_step():
    first, second = Replacer(Searched()), Replacer(Searched())
    first("a bag"), second("a bag")
    assert len(first._recent | second._recent) == 2
    assert hash("a bag") not in first._recent | second._recent


def test_no_text_passes_for_one_whose_characters_have_the_same_bytes():
    step, text = Redact(), "4111 1111 1111 1111."
    alike = text.encode().decode("utf-16-le")
    assert hash(alike) == hash(text)
    assert step.apply(user_messages(alike, text), CONTEXT)[1].content == "[card]."


def test_threads_may_share_a_step(monkeypatch):
    monkeypatch.setattr(pattern, "_GENERATION", 5)
    step = Redact()
    window = user_messages(*(f"It is {mail}{n}." for n in range(20) for mail in ("", "ann@example.org, or ")))
    shown = Redact().apply(window, CONTEXT)
    with ThreadPoolExecutor(8) as pool:
        assert all(each == shown for each in pool.map(lambda _: step.apply(window, CONTEXT), range(200)))


@pytest.mark.parametrize(
    "window",
    [["7" * 1_000_000], [f"{n} lamps and a desk " + "of oak, and a chair " * 70 for n in range(10_000)]],
    ids=["1 MB of digits", "10,000 messages"],
)
def test_what_is_remembered_costs_little_beside_the_search(window):
    step, window = Redact(), user_messages(*window)
    started = time.thread_time()
    step.apply(window, CONTEXT)
    searched = time.thread_time()
    step.apply(window, CONTEXT)
    assert time.thread_time() - searched < (searched - started) / 5
