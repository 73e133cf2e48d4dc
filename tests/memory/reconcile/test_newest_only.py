"""Clients that send only their newest message: all words are stored, each once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.memory.merge.answer import Answer, apply_answer
from proxy.memory.merge.request import apply_request
from proxy.memory.session import Session, attempt
from proxy.memory.speech import speech_of
from proxy.memory.wording import continues
from tests.memory.call import messages, shown

NORMAL = pytest.param(200, id="200 calls")
LONG = pytest.param(2000, id="2000 calls", marks=[pytest.mark.long, pytest.mark.timeout(600)])


class Client:
    """Sends requests of one message each, and has the session that results."""

    def __init__(self):
        self.held, self.now = Session(), 1_700_000_000.0

    def ask(self, words, answer="Well.", *, name=None, again=None, pause=3.0, took=1.0, finished=True):
        """``pause`` is what lies between the end of the answer before and this request."""
        self.now += pause
        self.record(words, answer, at=self.now, name=name, again=again, took=took, finished=finished)
        self.now += took

    def record(self, words, answer="Well.", *, at, name=None, again=None, took=1.0, finished=True):
        for _ in range(2):  # what is written twice is held once
            once = self.held
            said = speech_of(messages(f"u:{words}"))
            self.held, turn = apply_request(self.held, said, now=at, attempt=attempt(name, is_retry=again))
            reply = Answer(question=turn, text=answer, finished=finished, ended_at=at + took)
            self.held = apply_answer(self.held, reply, now=at)
        assert self.held == once

    @property
    def memory(self):
        return [shown(entry).replace("?:", ":", 1) for entry in self.held.entries]


def lines_of(*turns):
    return [line for words, answer in turns for line in (f"u:{words}", f"a:{answer}")]


TABLE = [
    ("Book a table.", "For two?"),
    ("Yes.", "At seven?"),
    ("Yes.", "Shall I book it?"),
    ("Yes.", "Done."),
]


def test_the_same_words_under_another_name_are_another_turn():
    client = Client()
    for number, (words, answer) in enumerate(TABLE):
        client.ask(words, answer, name=f"r{number}")
    assert client.memory == lines_of(*TABLE)


def test_the_same_words_under_the_same_name_are_the_same_request():
    client = Client()
    client.ask("Yes.", "At se", name="r1", finished=False)
    client.ask("Yes.", "At seven?", name="r1")
    assert client.memory == lines_of(("Yes.", "At seven?"))


def test_the_same_words_without_a_name_are_the_same_request():
    client = Client()
    client.ask("Hello.", "Hi.")
    client.ask("Yes.", "At seven?", name="r1")
    client.ask("Yes.", "At seven!")
    client.ask("Yes.", "At seven.")
    assert client.memory == lines_of(("Hello.", "Hi."), ("Yes.", "At seven."))


def test_what_is_counted_as_a_retry_is_one_under_any_name():
    client = Client()
    client.ask("Yes.", "At se", name="r1", again=False, finished=False)
    client.ask("Yes.", "At seven?", name="r2", again=True)
    assert client.memory == lines_of(("Yes.", "At seven?"))


def test_a_first_attempt_behind_an_answer_that_had_ended_is_another_turn():
    client = Client()
    for words, answer in TABLE:
        client.ask(words, answer, again=False)
    assert client.memory == lines_of(*TABLE)


@pytest.mark.parametrize("cut", [{"finished": False}, {"took": 9.0, "pause": 0.0}])
def test_a_first_attempt_while_there_is_no_answer_is_the_same_request(cut: dict):
    client = Client()
    client.ask("Book a table.", "For two?", again=False)
    client.record(
        "Yes.", "At seven?", at=client.now + 3, again=False, finished=cut.get("finished", True), took=9
    )
    client.record("Yes.", "At seven?", at=client.now + 4, again=False)
    assert client.memory == lines_of(("Book a table.", "For two?"), ("Yes.", "At seven?"))


def test_turns_of_the_same_words_are_recorded_in_any_order():
    client = Client()
    for at in (1.0, 3.0, 2.0):
        client.record("Yes.", f"Answer {at}", at=at, name=f"r{at}", took=0.5)
    assert client.memory == lines_of(("Yes.", "Answer 1.0"), ("Yes.", "Answer 2.0"), ("Yes.", "Answer 3.0"))


@pytest.mark.parametrize(
    ("first", "then"),
    [("Yes please", "Yes"), ("No", "Not now"), ("Hello", "Hello, are you there"), ("5", "50")],
)
@pytest.mark.parametrize("before", [[], [("Book a table.", "For two?")]])
def test_words_behind_an_answer_that_can_have_been_spoken_are_another_turn(
    first: str, then: str, before: list
):
    turns = [*before, (first, "What?"), (then, "Fine."), ("Bye.", "Bye.")]
    client = Client()
    for words, answer in turns:
        client.ask(words, answer, pause=0.4)
    assert client.memory == lines_of(*turns)


def test_whoever_interrupts_an_answer_is_held_to_the_word():
    client = Client()
    client.ask("No", "Why n", finished=False)
    client.ask("Not now", "Fine.")
    client.ask("Not", "What")
    assert client.memory == lines_of(("No", "Why n"), ("Not now", "Fine."), ("Not", "What"))


def test_words_that_are_guessed_while_they_are_said_are_held_once():
    client = Client()
    client.record("Wh", "Pardon?", at=1.0, took=2.0)
    client.record("What is", "What?", at=1.5, took=0.1, finished=False)
    client.record("What is the time?", "Noon.", at=1.7, took=2.0)
    client.record("What is", "What?", at=2.0, took=2.0)
    assert client.memory == lines_of(("What is the time?", "Noon."))


SHORT = st.sampled_from(["Yes", "Yes please", "No", "Not now", "Nothing", "Yes, please do", "好", "好的"])


@pytest.mark.parametrize("examples", [NORMAL, LONG])
def test_under_names_of_their_own_every_turn_is_held_once_in_any_order_of_recording(examples: int):
    turns = st.lists(st.tuples(SHORT, st.integers(1, 9), st.integers(0, 2)), min_size=1, max_size=8)

    @settings(max_examples=examples)
    @given(turns, st.data())
    def check(turns, data):
        said, now = [], 100.0
        for number, (words, tenths, retries) in enumerate(turns):
            for _ in range(1 + retries):
                now += 1 + tenths / 10
                said.append((now, words, f"Answer {number}", f"r{number}"))
        order = list(said)
        if len(said) == len(turns) and len(said) > 1:
            i = data.draw(st.integers(0, len(said) - 2))
            if not continues(said[i + 1][1], said[i][1]):  # words that are recorded late may be guessed ones
                order[i : i + 2] = order[i + 1], order[i]
        client = Client()
        for at, words, answer, name in order:
            client.record(words, answer, at=at, name=name, took=0.5)
        assert client.memory == lines_of(*((words, f"Answer {i}") for i, (words, *_) in enumerate(turns)))

    check()
