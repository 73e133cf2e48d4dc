"""Encoding a session from cached parts gives the same bytes as encoding all of it."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.memory import extensible
from proxy.memory.session import (
    EncodedEntries,
    Entry,
    LatestRequest,
    Session,
    TurnRef,
    decode,
    encode_further,
)

WORDS = st.sampled_from(["Hi", "Yes", "No", "é" * 40])
CHANGE = st.tuples(
    st.sampled_from(["append", "append", "append", "edit", "cut", "clear", "copy", "large"]),
    st.integers(0, 30),
    WORDS,
)
FIELDS: dict[str, Any] = {
    "call": 1,
    "next_turn": 7,
    "cold_count": 3,
    "user": "ann",
    "started": 1.5,
    "created": 1.0,
    "updated": 2.0,
    "latest_request": LatestRequest(
        at=1.0, fingerprint=b"12345678", line_count=1, start=0, shows_answers=True, shows_call_start=True
    ),
    "state": {"a": [1]},
    "model": "m",
    "trimmed": True,
    "room": 4,
    "learned_until": TurnRef(1, 2),
    "noted_until": TurnRef(1, -1),
    "alias": "a",
    "shared": True,
    "scale": 1.5,
    "prompts": ("x",),
}


def entry(text: str, turn: int) -> Entry:
    return Entry(role="user", turn=turn, content=text, recorded_at=float(turn))


@given(st.lists(CHANGE, max_size=40), st.sets(st.sampled_from(sorted(FIELDS))))
def test_what_is_known_changes_no_byte(changes: list[tuple[str, int, str]], named: set[str]) -> None:
    session, known = Session(**{name: FIELDS[name] for name in named}), EncodedEntries()
    for turn, (kind, place, text) in enumerate(changes):
        entries = [*session.entries]
        if kind == "append":
            entries += [entry(text, turn), entry(f"{text}!", turn)]
        elif kind == "edit" and entries:
            entries[place % len(entries)] = entry(text, turn)
        elif kind == "cut":
            del entries[: place % 5]
        elif kind == "clear":
            entries = []
        elif kind == "copy":
            entries = [*decode(extensible.encode(session)).entries]
        elif kind == "large":
            entries.append(msgspec.structs.replace(entry(text, turn), tool_calls=[{"n": 2**70}]))
        session = msgspec.structs.replace(session, entries=tuple(entries))
        blob, known = encode_further(session, known)
        assert blob == extensible.encode(session)
        assert known.entries == session.entries[: len(known.entries)]


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 65_535, 65_536, 65_537])
def test_any_number_of_entries_is_encoded(count: int) -> None:
    session = Session(entries=tuple(entry("Hi", 0) for _ in range(count)), next_turn=1)
    blob, known = encode_further(session, EncodedEntries())
    assert blob == extensible.encode(session)
    longer = msgspec.structs.replace(session, entries=(*session.entries, entry("Yes", 0)))
    assert encode_further(longer, known)[0] == extensible.encode(longer)


def test_what_newer_versions_added_stays() -> None:
    blob = msgspec.msgpack.encode({"entries": [{"role": "user", "turn": 0, "content": "Hi", "later": 1}]})
    session = decode(blob)
    assert session.unknown_fields
    again, known = encode_further(session, EncodedEntries())
    assert decode(again) == session
    assert known == EncodedEntries()
    assert encode_further(session, known)[0] == extensible.encode(session)
