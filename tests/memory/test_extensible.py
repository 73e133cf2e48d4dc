"""An older version keeps what a newer one has added to what both store, wherever that stands."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.memory import extensible
from proxy.memory.archive.records import Fact
from proxy.memory.errors import Unreadable
from proxy.memory.extensible import Extensible
from proxy.memory.past_calls import PastCall, UserRecord
from proxy.memory.privacy import _without_speaker
from proxy.memory.session import (
    Agents,
    Deletion,
    Entry,
    LatestRequest,
    Segment,
    Session,
    ShownCall,
    ShownFacts,
    TurnRef,
    decode,
    encode,
    person_of,
)

WORDS = st.text(max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | WORDS | st.binary(max_size=4),
    lambda each: st.lists(each, max_size=2) | st.dictionaries(WORDS, each, max_size=2),
    max_leaves=4,
)
NEW = st.dictionaries(WORDS.map("new_{}".format), JSON, max_size=2)
"""Fields that a newer version has added to one struct."""

WHOLE = Session(
    entries=tuple(
        Entry(role=role, turn=turn, content=f"{role} {turn}", user="ann" if turn else "bob", recorded_at=5.0)
        for turn in range(3)
        for role in ("user", "assistant")
    ),
    next_turn=3,
    user="bob",
    latest_request=LatestRequest(
        at=1.0, fingerprint=b"12345678", line_count=1, start=4, shows_answers=False, shows_call_start=True
    ),
    unheard=(Entry(role="assistant", turn=1, content="What nobody heard."),),
    state={"~unknown": "the client's own"},
    agents=Agents(("one",), {"agent": 0}),
    summaries=(Segment(text="They met.", call=0, turn=0),),
    shown_facts=ShownFacts(user="bob", epoch=b"1", at=2.0),
    shown_call=ShownCall(call=0, user="bob"),
    deletion=Deletion(at=1.0),
)
RECORD = UserRecord(
    profile="Likes tea.",
    calls=(
        PastCall(session="a", created=1.0, call=0, at=2.0),
        PastCall(session="b", created=1.0, call=0, at=3.0),
    ),
)
FACT = Fact(id="1", text="Likes tea.")


def structs_of(value: Any, plain: Any) -> Iterator[dict[str, Any]]:
    """The map of each extensible struct within a value, in what is stored of it."""
    if isinstance(value, Extensible):
        yield plain
        for field in msgspec.structs.fields(value):
            yield from structs_of(getattr(value, field.name), plain.get(field.encode_name))
    elif isinstance(value, tuple) and isinstance(plain, list):
        for each, stored in zip(value, plain, strict=True):
            yield from structs_of(each, stored)


@st.composite
def written_by_newer(draw: st.DrawFn, value: Extensible) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(value))
    for struct in structs_of(value, plain):
        struct.update(draw(NEW))
    return plain


def test_all_that_a_session_is_made_of_can_be_extended() -> None:
    stored = list(structs_of(WHOLE, msgspec.msgpack.decode(encode(WHOLE))))
    assert len(stored) == 1 + 6 + 7


@pytest.mark.parametrize(
    "value", [WHOLE, RECORD, FACT, WHOLE.entries[0]], ids=lambda value: type(value).__name__
)
@given(data=st.data())
def test_what_is_read_and_written_is_what_was_stored(value: Extensible, data: st.DataObject) -> None:
    plain = data.draw(written_by_newer(value))
    read = extensible.decode(msgspec.msgpack.encode(plain), type(value))
    for name in value.__struct_fields__:
        if name != "unknown_fields" and not isinstance(getattr(value, name), tuple | Extensible):
            assert getattr(read, name) == getattr(value, name)
    assert msgspec.msgpack.decode(extensible.encode(read)) == plain
    # As does the version after that.
    again = extensible.decode(extensible.encode(read), type(value))
    assert again == read


@given(plain=written_by_newer(WHOLE))
def test_what_is_not_changed_keeps_its_fields(plain: dict[str, Any]) -> None:
    read = decode(msgspec.msgpack.encode(plain))
    assert person_of(msgspec.msgpack.encode(plain)) == "bob"
    first = msgspec.structs.replace(read.entries[0], content="Other words.", pending=True)
    new = Entry(role="user", turn=3, content="The next question.")
    changed = msgspec.structs.replace(read, entries=(first, *read.entries[2:], new), next_turn=4, user="carl")
    written = msgspec.msgpack.decode(encode(changed))
    entries = plain["entries"]
    assert written["entries"] == [
        entries[0] | {"content": "Other words.", "pending": True},
        *entries[2:],
        {"role": "user", "turn": 3, "content": "The next question."},
    ]
    assert written == plain | {"entries": written["entries"], "turns": 4, "user": "carl"}


@given(plain=written_by_newer(WHOLE))
def test_a_user_who_is_erased_leaves_no_field_of_the_session(plain: dict[str, Any]) -> None:
    read = decode(msgspec.msgpack.encode(plain))
    left, _ = _without_speaker(read, read.entries, "ann")
    written = msgspec.msgpack.decode(encode(left))
    assert not [name for name in written if name.startswith("new_")]
    assert written["entries"][0] == plain["entries"][0]


@given(blob=st.binary(max_size=8))
def test_an_import_may_have_made_them_up(blob: bytes) -> None:
    session = msgspec.structs.replace(WHOLE, unknown_fields=blob)
    assert msgspec.structs.replace(decode(encode(session)), unknown_fields=b"") == WHOLE


def test_one_of_this_version_is_stored_as_it_always_was() -> None:
    plain = msgspec.msgpack.decode(encode(WHOLE))
    assert "~unknown" not in plain
    assert plain["agents"] == {"notices": ["one"], "lives": {"agent": 0}}
    assert decode(encode(WHOLE)) == WHOLE


@pytest.mark.parametrize("blob", [b"", b"\xc1", b"\x80\x80", b"\xa1a", b"\x91\x01"])
def test_what_is_no_such_value_is_refused(blob: bytes) -> None:
    with pytest.raises(Unreadable):
        decode(blob)


def test_a_field_of_another_type_is_refused() -> None:
    plain = msgspec.msgpack.decode(encode(WHOLE)) | {"entries": 5, "new": 1}
    with pytest.raises(Unreadable):
        decode(msgspec.msgpack.encode(plain))


def test_references_are_as_they_were() -> None:
    session = msgspec.structs.replace(WHOLE, cleared_until=TurnRef(0, 1))
    plain = msgspec.msgpack.decode(encode(session)) | {"new": {"deep": [1, {"er": b"2"}]}}
    read = decode(msgspec.msgpack.encode(plain))
    assert read.cleared_until == TurnRef(0, 1)
    assert msgspec.msgpack.decode(encode(read)) == plain


def test_numbers_of_more_than_64_bits_are_stored_as_floats() -> None:
    calls = [{"id": "call_1", "function": {"arguments": "{}"}, "extra": [10**30, -(10**400), 2**64 - 1]}]
    parts = [{"type": "text", "text": "Hi", "size": 10**30}]
    session = Session(entries=(Entry(role="assistant", turn=0, content=parts, tool_calls=calls),))
    [entry] = decode(encode(session)).entries
    assert entry.content == [{"type": "text", "text": "Hi", "size": 1e30}]
    assert entry.tool_calls == [{**calls[0], "extra": [1e30, float("-inf"), 2**64 - 1]}]
