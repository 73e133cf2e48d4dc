import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filters.tool_groups import groups
from proxy.memory.compaction import SessionLimits, cap, fit, uncovered
from proxy.memory.session import Entry, Session, message_of
from tests.memory.call import Call, calling, message, result
from tests.memory.conversation_faults import talks
from tests.memory.reconcile.test_replayed_conversations import states

NORMAL = pytest.param(100, id="100 calls")
LONG = pytest.param(2000, id="2000 calls", marks=[pytest.mark.long, pytest.mark.timeout(600)])


def entry(turn, role="user", **fields):
    return Entry(role=role, turn=turn, content="Hm", **fields)


def call(turn, *ids):
    return entry(turn, "assistant", tool_calls=calling(*ids).tool_calls)


def found(turn, i):
    return entry(turn, "tool", tool_call_id=i)


def test_a_small_session_stays_as_it_is():
    held = Session(entries=tuple(entry(i) for i in range(6)))
    assert cap(held, 6, 2) == (held, ())


def test_the_oldest_turns_move_out():
    held = Session(entries=tuple(entry(i) for i in range(7)), cold_count=5)
    kept, moved = cap(held, 6, 2)
    assert kept.entries == held.entries[5:] and moved == held.entries[:5] and kept.cold_count == 10


def test_a_turn_is_not_cut():
    held = Session(entries=(entry(0), entry(1), entry(1, "assistant"), entry(1, "assistant")))
    kept, moved = cap(held, 3, 2)
    assert len(moved) == 1 and len(kept.entries) == 3


def test_a_group_that_reaches_into_the_next_turn_is_not_cut():
    held = Session(entries=(entry(0), call(1, "a"), entry(2), found(2, "a"), entry(3)))
    assert len(cap(held, 4, 2)[1]) == 1


def test_an_open_group_stays_with_all_that_follows():
    held = Session(entries=(entry(0), call(1, "a"), entry(2), entry(3), entry(4)))
    assert len(cap(held, 4, 1)[1]) == 1


def test_a_call_that_was_given_up_does_not_hold_a_session_for_ever():
    held = Session(entries=(call(0, "a"), *[entry(i) for i in range(1, 9)]))
    assert cap(held, 8, 2) == (held, ())
    assert len(cap(held, 4, 2)[1]) == 7


def test_nothing_moves_where_no_turn_ends():
    held = Session(entries=(entry(0), *[entry(0, "assistant")] * 5))
    assert cap(held, 3, 1) == (held, ())


@pytest.mark.parametrize("summaries", [0, 10])
def test_where_turns_are_long_fewer_of_them_are_kept(summaries):
    long = [msgspec.structs.replace(entry(i), content="word " * 40_000) for i in range(20)]
    held = Session(entries=tuple(long), next_turn=20)
    window = SessionLimits(summaries=summaries)
    assert fit(held, held, window, now=0.0) == (held, ())
    kept, _ = fit(held, held, window.bounded(), now=0.0)
    assert sum(len(e.text) for e in uncovered(kept)) < 1_000_000
    assert uncovered(kept)[-1] == long[-1]


@pytest.mark.parametrize("examples", [NORMAL, LONG])
def test_no_cut_parts_a_turn_or_a_group(examples: int):
    @settings(max_examples=examples)
    @given(talks(), st.integers(1, 12), st.integers(0, 6))
    def check(requests, most, keep):
        for _, _, session in states(requests):
            kept, moved = cap(session, most, keep)
            assert (*moved, *kept.entries) == session.entries
            assert not moved or len(kept.entries) >= keep
            turns = {(e.call, e.turn) for e in moved}
            assert turns.isdisjoint((e.call, e.turn) for e in kept.entries)
            for group in groups([message_of(e) for e in session.entries]):
                # A result whose own call was never seen stands before the call that it is counted to.
                results = [i for i in group.results if i > group.call]
                assert len({i < len(moved) for i in (group.call, *results)}) == 1

    check()


def test_what_moved_out_is_not_recorded_anew():
    talk = Call()
    window = [message(f"{'ua'[i % 2]}:Line {i}") for i in range(11)]
    talk.ask(*window, answer="Line 11")
    talk.held, moved = cap(talk.held, 10, 4)
    assert len(moved) == 8
    talk.ask(*window, "a:Line 11", "u:Line 12", answer="Line 13")
    assert [e.text for e in talk.held.entries] == [f"Line {i}" for i in range(8, 14)]


def test_a_group_is_moved_whole():
    talk = Call()
    talk.ask("u:Look.", tool_calls=calling("c").tool_calls)
    talk.ask("u:Look.", calling("c"), result("c"), answer="Here.")
    talk.ask("u:Look.", calling("c"), result("c"), "a:Here.", "u:Ah.", answer="Yes.")
    talk.held, moved = cap(talk.held, 4, 3)
    assert moved == ()
    talk.held, moved = cap(talk.held, 4, 2)
    assert [e.role for e in moved] == ["user", "assistant", "tool", "assistant"]
