"""A digest keeps what would be missed most."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.tokens import in_text
from proxy.memory.compaction import extractive_summary, parse_note, shorten

SMALL_TALK = [
    ("user", "Hello there."),
    ("assistant", "Hello! How are you today? It is lovely to hear from you. What can I do for you?"),
    ("user", "I am fine, thanks. The weather is nice."),
    ("assistant", "That is good to hear. The weather is nice here as well, and it may stay so for a while."),
]
TOLD = [
    ("user", "My name is Ann Miller and my customer number is 4711."),
    ("assistant", "Thank you. How may I help?"),
    ("user", "Please cancel the table for two on Friday."),
    ("assistant", "It is cancelled."),
]


def test_what_seed_one_would_cut_off_is_kept():
    """Joining all and cutting at 500 characters keeps small talk; a digest keeps name, number and wish."""
    talk = [*SMALL_TALK * 3, *TOLD, *SMALL_TALK]
    cut = "\n".join(text for _, text in talk)[:500]
    made = extractive_summary(talk)
    for fact in ("Ann Miller", "4711", "cancel the table for two on Friday"):
        assert fact not in cut
        assert fact in made
    assert len(made) < 500


def test_sentences_stay_in_order_and_say_who_spoke():
    assert extractive_summary(TOLD, 200).split("\n") == [
        "user: My name is Ann Miller and my customer number is 4711.",
        "assistant: Thank you. How may I help?",
        "user: Please cancel the table for two on Friday.",
        "assistant: It is cancelled.",
    ]


def test_what_is_said_twice_is_told_once():
    assert (
        extractive_summary([("user", "Call 555 12."), ("user", "call 555 12.")], 100) == "user: Call 555 12."
    )


def test_other_scripts_have_sentences_as_well():
    talk = [("user", "\u4f60\u597d\u3002\u6211\u7684\u53f7\u7801\u662f4711\u3002\u8c22\u8c22\u3002")]
    assert "4711" in extractive_summary(talk, 8)


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ("Fog hung over roofs.", "He met Miller there."),
        ("Fog hung over roofs.", "He met three there."),
        ("Fog hung over roofs.", "I need more light."),
        ("Fair enough.", "That was all there."),
        ("Tea is good. Tea is hot. Tea is here.", "Snow fell overnight."),
    ],
    ids=["a name", "a number", "a request", "more than two words", "rare words"],
)
def test_the_more_telling_sentence_is_kept(less, more):
    assert extractive_summary([("user", f"{less} {more}")], 1) == f"user: {more}"
    assert extractive_summary([("user", f"{more} {less}")], 1) == f"user: {more}"


def test_the_users_own_words_are_kept_before_an_answer():
    talk = [("assistant", "Fog hung over roofs."), ("user", "Snow fell last night.")]
    assert extractive_summary(talk, 1) == "user: Snow fell last night."


@given(
    said=st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text(max_size=400)), max_size=30),
    most=st.integers(20, 300),
)
def test_it_is_as_short_as_it_is_told_and_never_empty(said, most):
    made = extractive_summary(said, most)
    longest = max((in_text(text) for _, text in said), default=0)
    assert in_text(made) <= 3 * max(most, min(longest, 250)) + 20
    printable = any(c.isprintable() and not c.isspace() for _, text in said for c in text)
    assert bool(made) >= printable


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("user: Hi", ("user", "Hi")),
        ("Note: Hi", ("notes", "Note: Hi")),
        ("Ann came.", ("notes", "Ann came.")),
    ],
)
def test_a_digest_can_be_made_of_notes(line, expected):
    assert parse_note(line) == expected


def test_added_text_that_is_short_stays_as_it_is():
    assert (
        shorten("The account is blue.\nThe account is blue.") == "The account is blue.\nThe account is blue."
    )
    assert in_text(shorten("\n".join(f"The account {n} is blue." for n in range(200)))) < 500
