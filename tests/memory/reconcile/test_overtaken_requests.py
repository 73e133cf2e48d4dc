"""Requests of one call, recorded in any order: memory is as if each had been recorded when it arrived."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filters.letters import bare
from filters.message import Message
from proxy.memory.merge.answer import Answer, apply_answer
from proxy.memory.session import Session
from tests.memory.call import asked, message, reconcile

NORMAL = pytest.param(100, id="100 calls")
LONG = pytest.param(2000, id="2000 calls", marks=[pytest.mark.long, pytest.mark.timeout(600)])
ANSWER = "Well{0}, the{0} red{0} house{0} stands{0} by{0} the{0} lake{0}"


@dataclass(frozen=True)
class Asked:
    """A request, when it arrived, and what answered it."""

    at: float
    window: list[Message]
    text: str
    finished: bool

    def __repr__(self):
        return f"\n{self.at} {[m.text for m in self.window]} {self.finished}"


def recorded(session, request):
    session = reconcile(session, request.window, now=request.at)
    turn = asked(session, request.window)
    answer = Answer(question=turn, text=request.text, finished=request.finished)
    return apply_answer(session, answer, now=request.at)


def after(requests):
    session = Session()
    for request in requests:
        session = recorded(session, request)
        assert recorded(session, request) == session
    return session


@st.composite
def calls(draw):
    """Requests that overlap: words that are cut, early forms of words, answers cut or not heard at all."""
    numbered, size = draw(st.booleans()), draw(st.sampled_from([None, 1, 5, 8]))
    history, requests = [message("0a:Hello!" if numbered else "a:Hello!")], []
    for turn in range(1, draw(st.integers(2, 7))):
        fields = {"turn_id": turn, "timestamp": turn} if numbered else {}
        words = f"Question {turn} of the caller"
        heard = draw(st.sampled_from([9, 9, 4, 2, 0]))
        shown = history if size is None else history[max(0, len(history) - size + 1) :]
        early = draw(st.booleans()) and size != 1
        for said in [words[:-7], words] if early else [words]:
            text = ANSWER.format(len(requests))
            window = [*shown, message(f"u:{said}", **fields)]
            requests.append(Asked(float(len(requests) + 1), window, text, heard == 9))
        history.append(window[-1])
        if heard:
            history.append(message(f"a:{' '.join(text.split()[:heard])}", **fields))
    return requests


@st.composite
def late(draw, requests):
    """The requests in another order; none is overtaken by more than three."""
    delays = draw(st.lists(st.integers(0, 3), min_size=len(requests), max_size=len(requests)))
    return [requests[i] for _, i in sorted((i + 1.01 * delay, i) for i, delay in enumerate(delays))]


def comparable_entry(entry):
    return entry.role, bare(entry.text), entry.original, entry.pending, entry.turn


def spanned(session):
    """What the newest window shows, and what follows it."""
    return [
        comparable_entry(entry)[:-1]
        for entry in session.entries[session.latest_request.start - session.cold_count :]
    ]


def words(session):
    return [entry.text for entry in session.entries if entry.role == "user"]


@pytest.mark.parametrize("examples", [NORMAL, LONG])
def test_what_the_newest_window_shows_is_held_whatever_the_order_of_recording(examples: int):
    @settings(max_examples=examples)
    @given(calls(), st.data())
    def check(requests, data):
        expected, found = after(requests), after(data.draw(late(requests)))
        assert spanned(found) == spanned(expected)
        turns = [entry.turn for entry in found.entries]
        assert turns == sorted(turns)

    check()


@pytest.mark.parametrize("examples", [NORMAL, LONG])
def test_neighbours_that_change_places_change_nothing(examples: int):
    @settings(max_examples=examples)
    @given(calls(), st.data())
    def check(requests, data):
        i = data.draw(st.integers(0, len(requests) - 2)) if len(requests) > 1 else 0
        swapped = [*requests[:i], *reversed(requests[i : i + 2]), *requests[i + 2 :]]
        expected, found = after(requests), after(swapped)
        assert words(found) == words(expected)
        assert [comparable_entry(e)[:2] for e in found.entries] == [
            comparable_entry(e)[:2] for e in expected.entries
        ]

    check()


HEARD = "a:Well0, the0 red0 house0"
HISTORY = [HEARD, "u:Question 2 of the caller", "a:As you like.", "u:Question 3 of the caller"]


@pytest.mark.parametrize("early", ["Question 2 of the", "Question 2 of the call"])
@pytest.mark.parametrize("more", [[], ["u:Question 4 of the caller"]])
def test_an_answer_is_known_again_before_words_that_are_held_in_an_early_form(early, more):
    opening = ["a:Hello!", "u:Question 1 of the caller"]
    first = Asked(1.0, [*map(message, opening)], ANSWER.format(0), finished=False)
    second = Asked(2.0, [*map(message, [*opening, HEARD, f"u:{early}"])], ANSWER.format(1), finished=True)
    ahead = Asked(5.0, [*map(message, [*HISTORY, *more])], ANSWER.format(4), finished=True)
    session = after([first, second, ahead])
    assert [(e.role, e.text) for e in session.entries[:3]] == [(m.role, m.text) for m in second.window[:3]]
    assert spanned(session)[0] == ("assistant", bare(HEARD[2:]), first.text, False)
    assert words(session) == [opening[1][2:], *(line[2:] for line in [*HISTORY[1::2], *more])]
