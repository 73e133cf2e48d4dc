"""A turn of a session that was deleted meanwhile is refused, and costs no turn of the next call."""

import asyncio
from typing import Any

import msgspec
import pytest

from filters.message import Message
from proxy.clock import wall_time
from proxy.memory.compaction import SessionLimits
from proxy.memory.recorder import Recorder, Writer
from proxy.memory.stores.session_store import (
    _MAX_WRITTEN,
    NOT_STORED,
    SessionStore,
    SessionWrite,
    StoredSession,
)
from proxy.memory.stores.store import KEEP_EXPIRY, Key
from proxy.memory.tasks import MANY_MESSAGES
from proxy.memory.turn_record import TurnRecord
from proxy.memory.view import RequestView
from tests.peers.fake_upstream import stream_of

pytestmark = pytest.mark.anyio
KEY = Key("default", "s1")


def turn(read: StoredSession, *texts: str, first: int = 0) -> TurnRecord:
    """A turn that has read the session, and is answered now."""
    now = wall_time()
    window = [Message(role="user", content=text, turn_id=number) for number, text in enumerate(texts, first)]
    view = RequestView(window, at=now).view_of(read.session, read.version)
    answer = stream_of(f"Answer to {texts[-1]}")
    return TurnRecord(key=KEY, window=window, answer=answer, at=now, view=view)


async def texts(store: SessionStore) -> list[Any]:
    stored = await store.load(KEY, background=True)
    return [entry.content for entry in stored.session.entries] if stored else []


async def head_of(recorder: Recorder, store: SessionStore) -> StoredSession:
    """What calls read while the turns that have ended are written; none where that takes no time."""
    while not recorder.is_written(KEY):
        if (head := store.heads.get(KEY)) is not None:
            return head
        await asyncio.sleep(0)
    return NOT_STORED


@pytest.mark.parametrize("length", [1, MANY_MESSAGES], ids=["short", "long"])
@pytest.mark.parametrize("is_refused", [True, False], ids=["answered later", "answered meanwhile"])
async def test_a_call_that_read_a_turn_which_is_then_refused_loses_none_of_its_own(
    store: SessionStore, length: int, is_refused: bool
) -> None:
    recorder = Recorder(Writer(store, SessionLimits(max_messages=2 * MANY_MESSAGES)))
    recorder.put(turn(NOT_STORED, *map(str, range(length))))
    await recorder.drain()
    read = await store.load(KEY)
    assert read is not None
    late = turn(read, *map(str, range(length)), "Late")
    await store.delete(KEY)
    recorder.put(late)
    first = turn(await head_of(recorder, store), "First")
    if is_refused:
        await recorder.drain()
        assert await texts(store) == []
    recorder.put(first)
    await recorder.drain()
    assert await texts(store) == ["First", "Answer to First"]


async def test_few_sessions_that_were_deleted_are_kept_in_mind(store: SessionStore) -> None:
    for number in range(2 * _MAX_WRITTEN):
        store.discard(Key("default", f"s{number}"))
    assert len(store._last_writes) == _MAX_WRITTEN


@pytest.mark.parametrize("way", ["deleted", "deleted as it arrived", "deleted meanwhile", "replaced"])
async def test_once_a_session_is_gone_no_call_reads_it_by_a_late_turn(store: SessionStore, way: str) -> None:
    recorder = Recorder(Writer(store, SessionLimits()))
    recorder.put(turn(NOT_STORED, "Mango"))
    await recorder.drain()
    read = await store.load(KEY)
    assert read is not None
    late = turn(read, "Late", first=1)
    if way == "replaced":
        bare = msgspec.structs.replace(read.session, entries=())
        assert await store.overwrite(KEY, SessionWrite(bare, read.version, KEEP_EXPIRY))
    else:
        deletion = asyncio.ensure_future(store.delete(KEY))
        await (asyncio.sleep(0) if way == "deleted meanwhile" else deletion)
    if way == "deleted as it arrived":
        late = msgspec.structs.replace(late, at=wall_time() + 0.1)
    recorder.put(late)
    if way == "deleted meanwhile":
        await deletion
    while not recorder.is_written(KEY):
        await asyncio.sleep(0)
        if (seen := await store.load(KEY)) is not None:
            assert "Mango" not in [entry.content for entry in seen.session.entries]
    assert await texts(store) == (["Late", "Answer to Late"] if way == "replaced" else [])
    if (stored := await store.load(KEY)) is not None:
        assert store.written_instead_of(KEY, stored.version) is None, "later turns go on from what they read"


async def test_a_turn_that_read_what_another_turn_here_has_replaced_is_written_at_once(
    store: SessionStore,
) -> None:
    recorder = Recorder(Writer(store, SessionLimits()))
    recorder.put(turn(NOT_STORED, "Mango"))
    await recorder.drain()
    read = await store.load(KEY)
    assert read is not None
    outcomes: list[tuple[str, str]] = []
    store._meter = lambda operation, outcome, _: outcomes.append((operation, outcome))
    for number, text in enumerate(["Second", "Third"], 1):
        recorder.put(turn(read, text, first=number))
        await recorder.drain()
    assert outcomes.count(("write", "done")) == 2
    assert ("write", "lost") not in outcomes
    assert (await texts(store))[::2] == ["Mango", "Second", "Third"]
