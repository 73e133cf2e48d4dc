"""Laws of export and import."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.message import Message
from proxy.memory.compaction import cap
from proxy.memory.interchange import contents, remainder_fields, restore_session, session_from_messages
from proxy.memory.merge.answer import Answer, apply_answer
from proxy.memory.session import Entry, Session
from proxy.memory.speakers import transcript_lines
from tests.memory.call import NOW, Call, asked, calling, message, reconcile, result
from tests.memory.exported import fields

texts = st.sampled_from(["", "Hi", "Hi there", "Hi there. Yes.", "<continue>", "Hm {very calm} {very sad}"])
marks = st.fixed_dictionaries(
    {},
    optional={
        "source": st.sampled_from(["asr", "llm", "silence", 1]),
        "user": st.sampled_from(["ann", "bob"]),
        "interrupted": st.sampled_from([True, False, "yes"]),
        "interrupt_timestamp": st.sampled_from([5, 5.5, "noon"]),
        "original": st.sampled_from(["Hi there. Yes.", 7]),
    },
)
spoken = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"]), "content": texts},
    optional={
        "turn_id": st.integers(-1, 5),
        "timestamp": st.sampled_from([1, 1.5]),
        "metadata": marks,
        "name": st.just("ann"),
    },
)
windows = st.lists(
    st.one_of(spoken.map(lambda fields: Message(**fields)), st.just(calling("c1")), st.just(result("c1"))),
    max_size=20,
)


def messages(shown: list[dict[str, Any]]) -> list[Message]:
    return msgspec.convert(shown, list[Message])


def again(shown: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return contents(session_from_messages(messages(shown), now=NOW).entries)


@given(windows)
def test_what_was_imported_exports_and_imports_the_same(window: list[Message]) -> None:
    shown = contents(session_from_messages(window, now=NOW).entries)
    assert again(shown) == shown


@given(st.lists(windows, max_size=6))
def test_what_a_call_left_exports_and_imports_the_same(replayed: list[list[Message]]) -> None:
    held = Session()
    for window in replayed:
        held = reconcile(held, window, now=NOW)
        turn = asked(held, window)
        held = apply_answer(held, Answer(question=turn, text="Hello there. Yes."), now=NOW)
    shown = contents(held.entries)
    assert again(shown) == shown


@given(windows, st.integers(1, 8), st.integers(0, 8))
def test_an_import_can_be_cut_like_any_session(window: list[Message], most: int, keep: int) -> None:
    session = session_from_messages(window, now=NOW)
    kept, moved = cap(session, most, keep)
    assert (*moved, *kept.entries) == session.entries


def turns(session: Session) -> list[tuple[int, int]]:
    return [(entry.call, entry.turn) for entry in session.entries]


def test_turns_are_told_by_their_numbers() -> None:
    window = [message(line) for line in ("1a:Hello!", "1u:One.", "1a:First.", "2u:Two.", "2u:Still two.")]
    assert turns(session_from_messages(window, now=NOW)) == [(0, 0), (0, 0), (0, 0), (0, 1), (0, 1)]


def test_a_number_that_goes_back_begins_a_new_life() -> None:
    session = session_from_messages(
        [message(line) for line in ("7u:One.", "7a:First.", "0a:Hello!", "1u:Two.")], now=NOW
    )
    assert turns(session) == [(0, 0), (0, 0), (1, 0), (1, 1)]
    assert (session.call, session.next_turn) == (1, 2)


def test_the_next_call_goes_on_from_an_import() -> None:
    call = Call(session_from_messages([message(line) for line in ("0u:One.", "0a:First.")], now=NOW))
    call.ask("0u:One.", "0a:First.", "1u:Two.", answer="Second.")
    assert call.memory == ["u:One.", "a:First.", "u:Two.", "a?:Second."]
    assert call.turns == [(0, 0), (0, 0), (0, 1), (0, 1)]


def test_an_answer_that_was_cut_before_anything_was_held_is_held() -> None:
    cut = Message(role="assistant", content="Why", metadata={"interrupted": True, "original": "Why did it?"})
    call = Call()
    call.ask(cut, "u:Stop.")
    assert call.memory == ["a:Why|Why did it?", "u:Stop."]


QUESTION = Entry(role="user", turn=0, content="Hi", recorded_at=1750000000.25)
ANSWER = Entry(
    role="assistant", turn=0, content="Hello.", source="llm", pending=True, recorded_at=1750000000.25
)


@pytest.mark.parametrize(
    ("told", "shown"),
    [(1749999999, 1750000000), (1749999999.5, 1750000000.25), (1749999999123, 1750000000250)],
)
def test_our_own_answer_bears_its_time_in_the_engines_unit(told: float, shown: float) -> None:
    asked = msgspec.structs.replace(QUESTION, timestamp=told)
    answer = contents([asked, ANSWER])[1]
    assert answer["timestamp"] == shown and type(answer["timestamp"]) is type(told)
    kept = Session(entries=(asked, ANSWER), next_turn=1)
    assert restore_session(messages(contents(kept.entries)), fields(**remainder_fields(kept))).entries == (
        asked,
        ANSWER,
    )


@pytest.mark.parametrize(
    "entries",
    [
        [QUESTION, ANSWER],
        [msgspec.structs.replace(QUESTION, timestamp=5), msgspec.structs.replace(ANSWER, recorded_at=0.0)],
        [msgspec.structs.replace(QUESTION, timestamp=5), msgspec.structs.replace(ANSWER, pending=False)],
    ],
)
def test_no_time_is_made_up(entries: list[Entry]) -> None:
    assert "timestamp" not in contents(entries)[1]


def test_what_was_said_is_told_in_lines_of_role_and_content() -> None:
    said = [
        message("1u:Where is\nmy parcel?"),
        calling("c"),
        result("c", '{"at": "Hanover"}'),
        message("1a:In Hanover."),
    ]
    session = session_from_messages(said, now=NOW)
    assert transcript_lines(session, session.entries) == [
        "user: Where is my parcel?",
        "assistant: In Hanover.",
    ]


def test_an_entry_is_as_it_was_said() -> None:
    (entry,) = session_from_messages(
        [Message(role="user", content="Hi", metadata={"user": "ann"})], now=NOW
    ).entries
    assert entry == Entry(role="user", turn=0, content="Hi", user="ann", recorded_at=NOW)
