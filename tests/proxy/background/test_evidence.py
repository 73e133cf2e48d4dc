"""Notes tell of their transcript, in any language; refusals and babble tell of none."""

import json
from pathlib import Path

import pytest

from proxy.background.summariser import is_about

TASK = "Write notes on the transcript: who the caller is, what was asked and answered, with all names."

# By language a call, notes on it, and what models say instead of notes.
TALKS = json.loads((Path(__file__).parents[2] / "golden" / "notes.json").read_text("utf-8"))


@pytest.mark.parametrize("language", TALKS)
def test_notes_tell_of_their_transcript(language: str) -> None:
    talk = TALKS[language]
    transcript = "\n".join(talk["transcript"])
    assert [text for text in talk["notes"] if not is_about(text, transcript, TASK)] == []


@pytest.mark.parametrize("language", TALKS)
def test_what_is_said_instead_of_notes_tells_of_nothing(language: str) -> None:
    talk = TALKS[language]
    transcript = "\n".join(talk["transcript"])
    assert [text for text in talk["instead"] if is_about(text, transcript, TASK)] == []


@pytest.mark.parametrize("language", TALKS)
def test_notes_on_another_call_tell_nothing_of_this_one(language: str) -> None:
    transcript = "\n".join(TALKS[language]["transcript"])
    others = [talk["notes"][0] for other, talk in TALKS.items() if other != language]
    assert [text for text in others if is_about(text, transcript, TASK)] == []


@pytest.mark.parametrize(
    ("text", "source", "expected"),
    [
        ("The caller is Ann.", "hi i am ann and " + "this weather lasted several weeks already " * 9, True),
        ("Order 4711.", "please cancel 4,711 and nothing besides the other orders", True),
        ("Bestellung \u0664\u0667\u0661\u0661.", "please cancel 4711", True),
        ("He drinks tea.", "the caller wants a notebook", False),
        (
            "The caller was asked for names.",
            "the caller asked for names while gardening happily outdoors",
            False,
        ),
        ("Anything.", "Hm. Yes. Ok.", True),
        ("", "I would like a table for two.", False),
    ],
)
def test_a_name_or_a_number_is_enough_and_the_tasks_own_words_are_not(
    text: str, source: str, expected: bool
) -> None:
    assert is_about(text, source, TASK) is expected
