"""When summaries are due, and that corrected turns are summarised again."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.memory.compaction import (
    Plan,
    SessionLimits,
    extractive_segment,
    fit,
    forced_plan,
    insert_segment,
    make_segment,
    mark_stale,
    next_plan,
    settle,
    uncovered,
)
from proxy.memory.session import Entry, Session, TurnRef, decode, encode

LIMITS = SessionLimits(max_messages=6, keep_messages=2, summaries=4)


def entry(number, role="user", text=None, life=0, **fields):
    return Entry(role=role, turn=number, call=life, content=text or f"{role} {number}", **fields)


def talk(turns, start=0, life=0):
    return tuple(entry(n, role, life=life) for n in range(start, turns) for role in ("user", "assistant"))


def made(session, plan, text="Notes."):
    told = [e for e in session.entries if plan.covers(e)]
    return insert_segment(session, plan, make_segment(session, plan, told, text, now=1.0))


def compacted(turns):
    session = Session(entries=talk(turns))
    return made(session, next_plan(session, LIMITS))


def test_nothing_is_due_before_the_maximum():
    assert next_plan(Session(entries=talk(3)), LIMITS) is None


def test_past_it_all_but_what_is_kept_is():
    plan = next_plan(Session(entries=talk(4)), LIMITS)
    assert (plan.behind, plan.reach) == (TurnRef(0, -1), TurnRef(0, 2))


def test_few_long_turns_pass_the_tokens_first():
    long = tuple(entry(n, text="word " * 200) for n in range(5))
    window = SessionLimits(max_messages=100, keep_messages=20, max_tokens=900, summaries=4)
    assert next_plan(Session(entries=long), window).reach.turn >= 2
    assert next_plan(Session(entries=long[:2]), window) is None


def test_a_new_life_makes_the_former_due():
    session = Session(entries=(*talk(2), *talk(1, life=1)), call=1)
    assert next_plan(session, LIMITS).reach == TurnRef(0, 1)


def test_turns_that_had_to_be_left_out_are_due_at_once():
    assert next_plan(Session(entries=talk(2), trimmed=True), LIMITS).reach == TurnRef(0, 0)


def test_all_that_had_no_room_is_covered_by_one_summary():
    assert next_plan(
        Session(entries=talk(8), trimmed=True, room=2), SessionLimits(60, 20, summaries=4)
    ).reach == TurnRef(0, 5)
    assert next_plan(
        Session(entries=talk(8), trimmed=True, room=7), SessionLimits(60, 20, summaries=4)
    ).reach == TurnRef(0, 3)


def test_where_every_prompt_passes_its_budget_a_summary_is_due_after_some_turns_again():
    window = SessionLimits(60, 20, summaries=4)
    first = Session(entries=talk(2), next_turn=2, trimmed=True, room=1)
    after = made(first, next_plan(first, window))
    newest = after.summaries[-1].created_at
    for turns in range(8):
        later = tuple(
            msgspec.structs.replace(e, recorded_at=newest + 1 + e.turn) for e in talk(2 + turns, start=2)
        )
        session = msgspec.structs.replace(after, entries=(*after.entries, *later), next_turn=2 + turns)
        assert (next_plan(session, window) is not None) is (turns >= 4)
        assert next_plan(msgspec.structs.replace(session, room=0), window) is None


def test_a_digest_of_turns_that_were_taken_back_tells_nothing_of_them():
    session = compacted(4)
    (one,) = session.summaries
    stale = msgspec.structs.replace(one, text="user: My secret is scarecrow.", stale=True)
    session = msgspec.structs.replace(session, summaries=(stale,))
    plan = next_plan(session, LIMITS)
    assert "scarecrow" not in extractive_segment(session, plan, [], now=1.0).text
    calls = [entry(0, "assistant", " ", tool_calls=[{"id": "c", "function": {"name": "f"}}])]
    assert "scarecrow" not in extractive_segment(session, plan, calls, now=1.0).text


def test_of_the_newest_turn_alone_nothing_is_due():
    assert next_plan(Session(entries=talk(1), trimmed=True, room=1), LIMITS) is None


def test_what_moved_out_before_there_were_summaries_is_due():
    assert next_plan(Session(entries=talk(2), cold_count=40), LIMITS).reach == TurnRef(0, 0)


def test_what_is_summarised_is_not_due_again():
    session = compacted(4)
    assert next_plan(session, LIMITS) is None
    assert [e.turn for e in uncovered(session)] == [3, 3]


@pytest.mark.parametrize("change", ["reworded", "withdrawn", "added"])
def test_a_correction_behind_the_reach_makes_its_segment_stale_and_no_other(change):
    before = Session(entries=talk(8))
    for _ in range(2):
        plan = next_plan(
            before,
            SessionLimits(max_messages=2, keep_messages=10 if not before.summaries else 2, summaries=4),
        )
        before = made(before, plan)
    first, second = (s.end for s in before.summaries)
    at = 0
    entries = {
        "reworded": (msgspec.structs.replace(before.entries[at], content="Other"), *before.entries[1:]),
        "withdrawn": before.entries[1:],
        "added": (before.entries[0], entry(0, text="More"), *before.entries[1:]),
    }[change]
    after = mark_stale(before, msgspec.structs.replace(before, entries=entries))
    assert [s.stale for s in after.summaries] == [True, False]
    plan = next_plan(after, LIMITS)
    assert (plan.first, plan.last, plan.reach) == (0, 1, first)
    again = made(after, plan, "Other notes.")
    assert [s.end for s in again.summaries] == [first, second]
    assert next_plan(again, LIMITS) is None


def test_a_correction_before_the_reach_makes_nothing_stale():
    before = compacted(4)
    entries = (
        *before.entries[:-1],
        msgspec.structs.replace(before.entries[-1], content="Cut", pending=False),
    )
    after = mark_stale(before, msgspec.structs.replace(before, entries=entries))
    assert not any(s.stale for s in after.summaries)


def test_an_answer_that_is_confirmed_is_no_correction():
    before = compacted(4)
    entries = tuple(msgspec.structs.replace(e, pending=True, recorded_at=5.0) for e in before.entries)
    assert mark_stale(before, msgspec.structs.replace(before, entries=entries)).summaries == before.summaries


def test_a_digest_does_not_say_that_the_user_said_what_a_program_put_in():
    entries = (entry(0, text="The caller is a VIP.", source="command"), *talk(2, start=1))
    session = Session(entries=(*entries, *talk(14, start=2)))
    text = extractive_segment(session, forced_plan(session, LIMITS), entries, now=1.0).text
    assert text.startswith("notes: The caller is a VIP.\nuser: user 1")


def test_beyond_twice_the_maximum_a_digest_stands_in_without_anybody():
    session = Session()
    for n in range(30):
        after = msgspec.structs.replace(session, entries=(*session.entries, *talk(n + 1, n)))
        session, _ = fit(session, after, LIMITS, now=1.0)
        assert len(uncovered(session)) <= 2 * LIMITS.max_messages
    assert all(s.extractive for s in session.summaries)
    assert len(session.summaries) <= 2 * LIMITS.summaries
    assert uncovered(session)[-1].turn == 29


def test_without_summaries_the_oldest_move_out_as_before():
    kept, moved = fit(Session(), Session(entries=talk(4)), SessionLimits(6, 2), now=1.0)
    assert (len(kept.entries), len(moved)) == (2, 6)
    assert kept.summaries == ()


def test_covered_turns_move_to_the_cold_part_but_for_the_newest():
    kept, moved = settle(compacted(6), 4)
    assert [e.turn for e in moved] == [0, 0, 1, 1, 2, 2]
    assert [e.turn for e in kept.entries] == [3, 3, 4, 4, 5, 5]
    assert kept.cold_count == 6


def test_no_turn_is_parted_where_covered_turns_move_out():
    assert settle(compacted(6), 3) == settle(compacted(6), 4)


def test_past_the_most_summaries_the_oldest_are_merged_and_none_is_lost():
    session = Session(entries=talk(1))
    for n in range(1, 8):
        session = msgspec.structs.replace(session, entries=(*session.entries, *talk(n + 1, n)))
        session = made(session, forced_plan(session, LIMITS), f"Notes {n}.")
    plan = next_plan(session, LIMITS)
    assert plan.merge
    assert session.summaries[plan.last - 1].end == plan.reach
    merged = insert_segment(session, plan, extractive_segment(session, plan, [], now=1.0))
    assert len(merged.summaries) == 7 - plan.last + 1
    assert all(f"Notes {n}." in merged.summaries[0].text for n in range(1, plan.last + 1))
    assert merged.summarized_until == session.summarized_until


def test_an_open_tool_group_is_never_covered():
    calls = [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    waiting = entry(1, "assistant", tool_calls=calls)
    session = Session(entries=(*talk(1), entry(1), waiting, *talk(5, 2)))
    assert next_plan(session, LIMITS).reach == TurnRef(0, 0)


def test_a_session_comes_back_from_bytes_as_it_was():
    session = msgspec.structs.replace(compacted(4), next_turn=4, model="m", trimmed=True)
    assert decode(encode(session)) == session


# --- who said what


def said_by(*names, start=0, **fields):
    return tuple(
        entry(n, text=f"I am {name} and my number is {4700 + n}.", user=name, **fields)
        for n, name in enumerate(names, start)
    )


def in_digests(session, *, each):
    """The session with a digest for as many turns each, as they come about where no model writes."""
    for last in range(each - 1, len(session.entries), each):
        first = len(session.summaries)
        plan = Plan(first, first, session.summarized_until, TurnRef(0, last))
        told = [e for e in session.entries if plan.covers(e)]
        session = insert_segment(session, plan, extractive_segment(session, plan, told, now=1.0))
    return session


def merged(session):
    plan = Plan(0, len(session.summaries), TurnRef(0, -1), session.summarized_until, merge=True)
    return extractive_segment(session, plan, [], now=2.0).text.split("\n")


def test_a_merge_of_digests_keeps_who_said_what():
    talks = Session(entries=said_by("bob", "eve", "bob", "eve"), user="bob")
    session = in_digests(talks, each=2)
    lines = [f"user {e.user}: {e.text}" for e in talks.entries]
    assert [one.text.split("\n") for one in session.summaries] == [lines[:2], lines[2:]]
    moved = msgspec.structs.replace(session, entries=())  # by now they may all lie in the cold part
    assert set(merged(moved)) <= set(lines) and len(merged(moved)) > 1


def test_a_line_of_a_models_notes_is_no_speakers():
    plan = Plan(0, 0, TurnRef(0, -1), TurnRef(0, 1))
    talks = Session(entries=said_by("bob", "bob"), user="bob")
    session = insert_segment(
        talks, plan, make_segment(talks, plan, talks.entries, "user data: 4711", now=1.0, model="notes")
    )
    assert merged(session) == ["notes: user data: 4711"]


@given(
    st.lists(st.sampled_from(["user", "assistant", "tool"]), max_size=12), st.text(min_size=1, max_size=20)
)
def test_one_speaker_is_told_as_if_nobody_were_named(roles, name):
    def session(**fields):
        return Session(entries=tuple(entry(n, role, **fields) for n, role in enumerate(roles)))

    plan = Plan(0, 0, TurnRef(0, -1), TurnRef(0, 99))
    unnamed, by_mark, by_name = session(), session(user=name), session(name=name)
    expected = extractive_segment(unnamed, plan, unnamed.entries, now=1.0)
    for told in (by_mark, by_name, msgspec.structs.replace(by_mark, user=name)):
        segment = extractive_segment(told, plan, told.entries, now=1.0)
        assert msgspec.structs.replace(segment, speakers=()) == expected


def test_where_nobody_knows_who_spoke_nobody_is_named():
    """Requests of several persons have come, whose messages name nobody."""
    talks = Session(entries=(*said_by(None), *said_by("eve", "bob", start=1)), user="ann", shared=True)
    plan = Plan(0, 0, TurnRef(0, -1), TurnRef(0, 2))
    lines = extractive_segment(talks, plan, talks.entries, now=1.0).text.split("\n")
    assert [line.partition(":")[0] for line in lines] == ["user", "user eve", "user bob"]


def test_what_a_program_put_in_is_nobodys():
    talks = Session(entries=(*said_by("bob"), *said_by("eve", start=1, source="command")), user="bob")
    plan = Plan(0, 0, TurnRef(0, -1), TurnRef(0, 1))
    lines = extractive_segment(talks, plan, talks.entries, now=1.0).text.split("\n")
    assert [line.partition(":")[0] for line in lines] == ["user", "notes"]
