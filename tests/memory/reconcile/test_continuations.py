"""A window that goes on from the last one is merged by appending, with what the builder would build."""

from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from filters.message import Message
from proxy.memory.merge.builder import SessionBuilder
from proxy.memory.merge.entries import retracted
from proxy.memory.merge.request import continued
from proxy.memory.session import Session
from proxy.memory.stores.store import Key
from proxy.memory.turn_record import TurnRecord, apply_turn
from proxy.memory.view import ChainNeeds, RequestView, prompt_view
from tests.peers.fake_upstream import stream_of

KEY = Key("default", "s1")
TURN = st.tuples(
    st.sampled_from(["Yes.", "Yes. Please.", "No.", "Tomorrow at three", ""]),
    st.sampled_from(["That is fine.", "All right, then I shall do that.", ""]),
    st.integers(0, 4),
)


def line(role: str, text: str, number: int | None) -> Message:
    named = {} if number is None else {"turn_id": number, "timestamp": 1_790_000_000_000 + number}
    return Message(role=role, content=text, **named)  # type: ignore[arg-type]


def talk(turns: list[Any], window: int, *, numbered: bool) -> list[bool]:
    """Which windows of a talk are continuations; each is merged and shown both ways."""
    session, lines, found = Session(), list[Message](), []
    for number, (said, answered, cut) in enumerate(turns):
        turn = number + 1 if numbered else None
        words, answer = said or f"Question {number}.", answered or f"The answer to question {number}."
        lines.append(line("user", words, turn))
        view = RequestView(lines[-window:]).view_of(session)
        alignment = view.alignment
        found.append(alignment is not None and alignment.is_continuation)
        if alignment is not None and alignment.is_continuation:
            built = SessionBuilder(session, alignment, retracted(alignment), now=1.0).build(b"f")
            assert continued(session, alignment, b"f", now=1.0) == built
            plain = view._replace(alignment=msgspec.structs.replace(alignment, is_continuation=False))
            for needs in (ChainNeeds(), ChainNeeds(history=True)):
                one, other = prompt_view(view, needs), prompt_view(plain, needs)
                assert (one.snapshot, [*one.window]) == (other.snapshot, [*other.window])
        record = TurnRecord(
            key=KEY,
            window=lines[-window:],
            answer=stream_of(answer),
            at=float(number + 1),
            turn=turn,
            view=view,
            ended_at=number + 1.5,
        )
        session = apply_turn(session, record)
        heard = answer if cut else " ".join(answer.split()[:2])
        lines.append(line("assistant", heard, turn))
    return found


@given(st.lists(TURN, max_size=12), st.integers(1, 9), st.booleans())
@settings(max_examples=300)
def test_a_continuation_is_merged_as_any_other_window(turns: list[Any], window: int, numbered: bool) -> None:
    talk(turns, window, numbered=numbered)


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("window", [2, 7, 100])
def test_an_ordinary_talk_is_continued_from_the_second_turn_on(window: int, numbered: bool) -> None:
    assert talk([("", "", 1)] * 8, window, numbered=numbered) == [False, *[True] * 7]
