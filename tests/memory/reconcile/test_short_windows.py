"""Windows of a few lines, of callers who say the same short words again and again: no turn is lost.

Kept out, since nobody could tell: a window that is equal to the one before, where it has no name or nothing
has slid out of it yet: it may be a retry; and the same lines again with more or fewer words in the last one:
it may be the same turn. An answer stays held, unconfirmed, that was not heard and that no window can show to
be missing: one that shows no answer at all, where none was shown before.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.memory.merge.answer import Answer, apply_answer
from proxy.memory.merge.request import apply_request
from proxy.memory.session import Session, attempt
from proxy.memory.speech import speech_of
from tests.memory.call import Call, messages, missing, shown

NORMAL = pytest.param(200, id="200 calls")
LONG = pytest.param(2000, id="2000 calls", marks=[pytest.mark.long, pytest.mark.timeout(1800)])

WORDS = st.sampled_from(["yes", "no", "yes please", "what?", "next", None])
ANSWERS = st.sampled_from(["Sure.", "Okay.", "Anything else?", "Is that right?", None])
HEARD = st.sampled_from(["all", "all", "all", "some", "none"])


class Talk:
    """A call of which the engine replays the last few lines."""

    def __init__(self, rounds, *, named):
        self.size, self.named = 2 * rounds + 1, named
        self.held, self.now = Session(), 1_700_000_000.0
        self.truth, self.window = [], []

    def ask(self, words, answer, heard="all"):
        """A turn, unless it would be what came before; ``heard`` is how much of the answer is."""
        window = [*self.truth, f"u:{words}"][-self.size :]
        if window == self.window and not (
            self.named and self.held.latest_request and not self.held.latest_request.shows_call_start
        ):
            return
        *before, newest = window
        if (
            window != self.window
            and before
            and before == self.window[:-1]
            and continues(newest, self.window[-1])
        ):
            return
        self.window = window
        self.truth.append(f"u:{words}")
        self.now += 10
        self.check_shown(window)
        name = attempt(f"r{self.now}" if self.named else None, is_retry=None)
        for _ in range(2):
            self.held, turn = apply_request(
                self.held, speech_of(messages(*window)), now=self.now, attempt=name
            )
            reply = Answer(question=turn, text=answer, ended_at=self.now + 2)
            self.held = apply_answer(self.held, reply, now=self.now)
        self.hear(answer, heard)

    def check_shown(self, window):
        told = [f"{m.role[0]}:{m.text}" for m in [*missing(self.held, messages(*window)), *messages(*window)]]
        if not self.named:
            assert words(told) == words(self.truth)

    def hear(self, answer, heard):
        if heard == "all":
            self.truth.append(f"a:{answer}")
        elif heard == "some":
            self.truth.append(f"a:{answer.split()[0]}")

    @property
    def memory(self):
        """Returns the stored entries, without answers that no window has confirmed."""
        return [shown(e).split("|")[0] for e in self.held.entries if not e.pending]


def continues(one, other):
    """Whether one of them begins with the other."""
    return one.startswith(other) or other.startswith(one)


def words(lines):
    return [line for line in lines if line[0] == "u"]


@pytest.mark.parametrize("rounds", [1, 2, 3, 5])
@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize("examples", [NORMAL, LONG])
def test_every_turn_is_held_once_as_it_was_heard(examples, named, rounds):
    turns = st.lists(st.tuples(WORDS, ANSWERS, HEARD), min_size=2, max_size=14)

    @settings(max_examples=examples)
    @given(turns)
    def check(turns):
        talk = Talk(rounds, named=named)
        for number, (said, answer, heard) in enumerate(turns):
            talk.ask(said or f"question {number}", answer or f"A long answer to question {number}.", heard)
        talk.ask("good bye", "Bye.", "none")
        assert talk.memory == talk.truth

    check()


def test_a_phrase_that_comes_back_behind_an_answer_that_nobody_heard_takes_nothing_back():
    talk = Talk(1, named=False)
    for said in ["play jazz", "louder", "next song", "what is this"]:
        talk.ask(said, "Sure.")
    talk.ask("pause", "Pausing.", "none")
    talk.ask("louder", "Louder it is.")
    talk.ask("thanks", "Bye.")
    assert words(talk.memory) == words(talk.truth)
    assert talk.memory == talk.truth[:-1]


def test_turns_that_failed_do_not_make_a_new_one_old():
    talk = Talk(1, named=False)
    for said in ["no", "what?", "next"]:
        talk.ask(said, "Is that right?")
    talk.truth.append("u:question 3")  # it got no answer, so nothing was recorded
    talk.ask("no", "Fine.")
    assert words(talk.memory) == words(talk.truth)


def test_words_that_were_said_before_a_turn_that_failed_are_new_behind_it():
    call = Call()
    call.ask("u:A table, please", answer="For two?")
    call.ask("u:A table, please", "a:For two?", "u:yes", answer="Okay, done.")
    # What was said next got no answer, so nothing was recorded.
    call.ask("a:Okay, done.", "u:Hello there", "u:yes", answer="I am here.")
    assert call.memory == [
        "u:A table, please",
        "a:For two?",
        "u:yes",
        "a:Okay, done.",
        "u:Hello there",
        "u:yes",
        "a?:I am here.",
    ]


def test_an_answer_that_was_not_heard_is_not_the_same_words_further_up():
    call = Call()
    call.ask("u:I want to book", answer="At five.")
    call.ask("u:I want to book", "a:At five.", "u:My number is 509", answer="At five.")
    call.ask("a:At five.", "u:My number is 509", "u:Yes", "u:Two", answer="All right.")
    assert call.memory == [
        "u:I want to book",
        "a:At five.",
        "u:My number is 509",
        "u:Yes",
        "u:Two",
        "a?:All right.",
    ]


def test_words_whose_answer_was_not_heard_are_not_new_behind_a_turn_that_failed():
    call = Call()
    call.ask("u:What time is it?", answer="It is five.")
    call.ask("u:What time is it?", "a:It is five.", "u:OK", answer="Anything else?")
    call.ask("u:Tomorrow at five, please", answer="One moment.")
    # The next words got no answer, so nothing was recorded.
    call.ask("u:Tomorrow at five, please", "u:Hello there", "u:What time is it?", answer="Six.")
    assert call.memory == [
        "u:What time is it?",
        "a:It is five.",
        "u:OK",
        "a?:Anything else?",
        "u:Tomorrow at five, please",
        "a?:One moment.",
        "u:Hello there",
        "u:What time is it?",
        "a?:Six.",
    ]
