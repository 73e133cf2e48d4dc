"""Turns never go back: what says otherwise is refused, and whatever is planned comes to an end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.memory.compaction import (
    SessionLimits,
    extractive_segment,
    forced_plan,
    insert_segment,
    next_plan,
    overflow_plan,
)
from proxy.memory.interchange import restore_session
from proxy.memory.session import Entry, Segment, Session
from tests.memory.call import NOW, message
from tests.memory.exported import fields

LIMITS = SessionLimits(max_messages=6, keep_messages=2, summaries=4)
MOST_STEPS = 60
"""More than there are entries and summaries to move."""

numbers = st.integers(0, 4)
places = st.lists(st.tuples(numbers, numbers), max_size=40)
summaries = st.lists(
    st.builds(Segment, text=st.just("Notes."), call=numbers, turn=st.integers(-1, 4)), max_size=12
)


def entries(found: list[tuple[int, int]]) -> tuple[Entry, ...]:
    return tuple(
        Entry(role="assistant" if i % 2 else "user", call=life, turn=turn, content=f"Line {i}.")
        for i, (life, turn) in enumerate(found)
    )


sessions = st.builds(
    Session, entries=places.map(entries), summaries=summaries.map(tuple), call=numbers, next_turn=numbers
)


def steps(session: Session, planned) -> int:
    """After how many steps nothing is planned any more."""
    for step in range(MOST_STEPS):
        plan = planned(session)
        if plan is None:
            return step
        told = [entry for entry in session.entries if plan.covers(entry)]
        session = insert_segment(session, plan, extractive_segment(session, plan, told, now=NOW))
    raise AssertionError("it goes on for ever")


@given(sessions)
def test_whatever_is_planned_comes_to_an_end_in_any_order_of_turns(session: Session) -> None:
    for planned in (
        lambda held: overflow_plan(held, LIMITS),
        lambda held: next_plan(held, LIMITS, model=False),
        lambda held: forced_plan(held, LIMITS),
    ):
        steps(session, planned)


TWO = [{"life": 1, "turn": 3}, {"life": 1, "turn": 4}]


@pytest.mark.parametrize(
    ("left", "fault"),
    [
        ({"entries": [TWO[1], TWO[0]], "life": 1, "turns": 5}, "entry 2 goes back behind the turn before it"),
        ({"entries": [TWO[0], {"turn": 9}], "life": 1, "turns": 9}, "entry 2 goes back"),
        ({"entries": [{"turn": -1}, *TWO[1:]], "life": 1, "turns": 5}, "entry 1 goes back"),
        ({"entries": TWO, "life": 0, "turns": 5}, "entry 2 lies beyond 'life' and 'turns'"),
        ({"entries": TWO, "life": 1, "turns": 4}, "entry 2 lies beyond"),
        (
            {"entries": TWO, "life": 1, "turns": 5, "summaries": [(1, 4), (1, 3)]},
            "summary 2 goes back",
        ),
        ({"entries": TWO, "life": 1, "turns": 5, "summaries": [(0, -2)]}, "summary 1 goes back"),
        (
            {"entries": TWO, "life": 1, "turns": 5, "summaries": [(1, 5)]},
            "summary 1 lies beyond",
        ),
        ({"entries": [{}, {}], "life": -1}, "count from 0"),
    ],
)
def test_an_import_whose_turns_go_back_is_refused(left, fault) -> None:
    told = [{"text": "Notes.", "life": life, "turn": turn} for life, turn in left.pop("summaries", [])]
    with pytest.raises(ValueError, match=fault):
        restore_session([message("u:Hi"), message("u:Bye")], fields(**left, summaries=told))
