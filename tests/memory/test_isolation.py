"""Tenants, users and sessions are kept apart on every driver, whatever their names are."""

import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from filters.message import Message
from proxy.memory.compaction import SessionLimits
from proxy.memory.recorder import Recorder, Writer
from proxy.memory.session import decode
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.session_store import SessionStore
from proxy.memory.stores.store import Key, Store
from proxy.memory.turn_record import TurnRecord
from tests.memory.contract_store import IDS
from tests.peers.fake_upstream import stream_of

pytestmark = pytest.mark.anyio
PAIR = st.lists(IDS, min_size=2, max_size=2, unique=True)
USERS = st.lists(st.text(min_size=1, max_size=8).filter(str.strip), min_size=2, max_size=2, unique=True)
FEW = SessionLimits(max_messages=4, keep_messages=2)


def turn(key: Key, user: str, number: int) -> TurnRecord:
    words = f"{key!r} {user!r} {number}"
    window = [Message(role="user", content=f"I am {words}", turn_id=number, metadata={"user": user})]
    return TurnRecord(
        key=key, user=user, window=window, answer=stream_of(f"You are {words}"), at=float(number)
    )


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(tenants=PAIR, sessions=PAIR, users=USERS)
async def test_tenants_and_users_with_the_same_ids_never_meet(
    store: Store, tenants: list[str], sessions: list[str], users: list[str]
):
    mark = uuid.uuid4().hex  # what an earlier example left is not this one's
    keys = {
        Key(mark + tenant, session): user
        for tenant in tenants
        for session, user in zip(sessions, users, strict=True)
    }
    recorder = Recorder(Writer(SessionStore(store, Plain()), FEW))
    for number in range(4):
        for key, user in keys.items():
            recorder.put(turn(key, user, number))
    await recorder.drain()
    assert recorder.lost_turns == 0
    for key, user in keys.items():
        read = await store.read(key)
        assert read
        held = decode(read.blob)
        moved = await store.cold(key)
        assert held.user == user
        assert held.cold_count == len(moved) > 0
        said = "".join(entry.text for entry in held.entries) + b"".join(moved).decode("utf-8", "replace")
        others = [f"{other!r} {name!r}" for other, name in keys.items() if other != key]
        assert f"{key!r} {user!r} 3" in said
        assert not any(other in said for other in others)
