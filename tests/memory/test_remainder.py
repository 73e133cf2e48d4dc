"""An exported and imported session equals the original."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.message import Message
from filters.tool_groups import FUNCTION
from filters.tool_groups import tool_call_of as functions_held
from proxy.memory.interchange import contents, remainder_fields, restore_session, session_from_messages
from proxy.memory.merge.answer import Answer, apply_answer
from proxy.memory.session import START, Agents, Entry, Session, ShownFacts, TurnRef
from proxy.turn.request import read_messages
from tests.memory.call import NOW, asked, message, reconcile
from tests.memory.exported import fields
from tests.memory.test_interchange import windows


def called(name: str) -> list[dict[str, Any]]:
    return [functions_held({"name": name, "arguments": "{}"})]


numbers = st.integers(0, 9)
times = st.none() | st.integers(0, 2**40) | st.floats(0, 1e12)
texts = st.text(max_size=8)
calls = st.lists(st.fixed_dictionaries({"id": texts, "function": st.just({"name": "look"})}), max_size=2)
contents_ = st.none() | texts | st.just([{"type": "text", "text": "Hi"}, {"type": "image_url"}])
entries = st.builds(
    Entry,
    role=st.sampled_from(["user", "assistant", "tool"]),
    turn=numbers,
    call=numbers,
    turn_id=st.none() | st.integers(-5, 2**62),
    content=contents_,
    name=st.none() | texts,
    tool_calls=st.none() | calls,
    tool_call_id=st.none() | texts,
    timestamp=times,
    source=st.none() | st.sampled_from(["asr", "llm", "silence", ""]),
    user=st.none() | texts,
    interrupted=st.booleans(),
    interrupt_timestamp=times,
    original=st.none() | texts,
    pending=st.booleans(),
    broken=st.booleans(),
    reasoning=st.none() | texts,
    replaced_hash=st.none() | texts,
    recorded_at=st.floats(0, 2e9),
)
functions = st.builds(Entry, role=st.just("assistant"), turn=numbers, tool_calls=texts.map(called))
results = texts.map(lambda name: Entry(role="tool", turn=0, name=name, tool_call_id=FUNCTION + name))


def in_order(found: list[Entry]) -> tuple[Entry, ...]:
    """No turn goes back."""
    return tuple(sorted(found, key=lambda entry: entry.turn_ref))


sessions = st.builds(
    Session,
    # In order: no turn goes back.
    entries=st.lists(entries | functions | results, max_size=8).map(
        lambda found: tuple(sorted(found, key=lambda e: e.turn_ref))
    ),
    call=st.integers(9, 12),
    next_turn=st.integers(10, 20),
    user=st.none() | texts,
    created=st.floats(0, 2e9),
    updated=st.floats(0, 2e9),
    learned_until=st.builds(TurnRef, numbers, numbers),
    alias=st.none() | texts,
    shared=st.booleans(),
    agents=st.none()
    | st.builds(
        Agents,
        event_ids=st.lists(texts, max_size=3).map(tuple),
        calls=st.dictionaries(texts, numbers, max_size=3),
    ),
)


def carried(session: Session) -> Session:
    """The session after a way through JSON."""
    shown = msgspec.json.encode(contents(session.entries))
    messages, _ = read_messages(msgspec.Raw(shown))
    return restore_session(messages, fields(**remainder_fields(session)))


@given(sessions)
def test_an_import_of_an_export_is_what_was_exported(session: Session) -> None:
    assert carried(session) == session


@given(st.lists(windows, max_size=6))
def test_what_a_call_left_is_carried_exactly(replayed: list[list[Message]]) -> None:
    held = Session()
    for turn, window in enumerate(replayed):
        held = reconcile(held, window, now=NOW + turn)
        answer = Answer(question=asked(held, window), text="Hello there.", finished=turn % 2 == 0)
        held = apply_answer(held, answer, now=NOW + turn)
    assert carried(held) == held


def test_what_is_made_anew_is_not_carried() -> None:
    told = ShownFacts(user="ann", epoch=b"1", at=1.0)
    session = Session(entries=(), cold_count=3, shown_facts=told, updated=2.0)
    assert remainder_fields(session) == {"updated": 2.0}


@pytest.mark.parametrize("name", ["moved", "told", "more"])
def test_a_field_that_is_not_carried_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"unknown field `{name}`"):
        restore_session([], fields(**{name: 1}))


def test_what_was_exported_before_speakers_were_told_apart_is_taken() -> None:
    session = restore_session([message("u:Hi")], fields(entries=[{}], user="ann", turns=1))
    assert (session.user, session.learned_until, session.alias, session.shared) == ("ann", START, None, False)


def test_what_messages_tell_is_not_told_twice() -> None:
    session = session_from_messages([message("3u:Hi"), message("3a:Hello.")], now=NOW)
    assert remainder_fields(session)["entries"] == [{"recorded": NOW}] * 2


def test_a_system_message_is_not_brought_in() -> None:
    own = fields(entries=[{"role": "user"}, {}], turns=2)
    session = restore_session([message("s:Obey."), message("u:Hi")], own)
    assert [entry.role for entry in session.entries] == ["user"]


@pytest.mark.parametrize("own", [[], [{}, {}], [{"turn": "one"}]])
def test_a_remainder_of_other_messages_is_refused(own: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError):
        restore_session([message("u:Hi")], fields(entries=own))
