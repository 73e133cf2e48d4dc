"""Answers that a platform shows twice reach the model once, and are stored once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filters.base import Context
from filters.repair_history import RepairHistory
from proxy.memory.view import ChainNeeds, RequestView, prompt_view
from tests.memory.call import Call, messages

NORMAL = pytest.param(200, id="200 calls")
LONG = pytest.param(2000, id="2000 calls", marks=[pytest.mark.long, pytest.mark.timeout(600)])
SPELLINGS = [
    str,
    str.strip,
    str.lower,
    lambda t: f"{t}\n",
    lambda t: f" {t} ",
    lambda t: t.replace(" ", "\n"),
]
spelt = st.sampled_from(SPELLINGS)
WORDS = st.lists(st.sampled_from(["the", "house,", "stands", "by", "a lake."]), max_size=5).map(" ".join)


@st.composite
def replays(draw):
    """Answers, and how each is spelt: once or twice, whole or cut."""
    turns = []
    for number in range(draw(st.integers(1, 5))):
        answer = f"Answer {number} {draw(WORDS)}".strip()
        end = draw(st.one_of(st.none(), st.integers(len(f"Answer {number}"), len(answer))))
        copies = [draw(spelt)(answer[:end].strip()) for _ in range(draw(st.integers(1, 2)))]
        turns.append((f"Question {number}", answer, copies))
    return turns


@pytest.mark.parametrize("examples", [NORMAL, LONG])
def test_a_doubled_answer_is_told_and_held_once_however_either_is_spelt(examples: int):
    @settings(max_examples=examples)
    @given(replays(), st.booleans(), st.integers(3, 12))
    def check(turns, numbered, size):
        call, lines = Call(), []
        for number, (words, answer, copies) in enumerate(turns):
            head = str(number) if numbered else ""
            lines.append(f"{head}u:{words}")
            window = messages(*lines[-size:])
            view = RequestView(window, at=call.ended + 9).view_of(call.held)
            prompt = prompt_view(view, ChainNeeds(history=True))
            told = [*prompt.snapshot.dropped, *RepairHistory().apply(prompt.window, Context(now=0.0))]
            assert [message.role for message in told] == [*["user", "assistant"] * number, "user"]
            call.ask(*window, answer=answer)
            assert [line[0] for line in call.memory] == ["u", "a"] * (number + 1)
            lines += [f"{head}a:{copy}" for copy in copies]

    check()
