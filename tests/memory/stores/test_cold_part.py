"""The cold part is read from the needed turn on, and no further."""

import asyncio
import bisect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.memory.compaction import SessionLimits
from proxy.memory.facts.extraction import ENOUGH, FactExtraction
from proxy.memory.facts.user_facts import UserFacts
from proxy.memory.session import START, Entry, Segment, Session, TurnRef, encode
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.session_store import SessionStore
from proxy.memory.stores.store import BlobWrite, Key
from proxy.memory.stores.volatile import VolatileStore
from proxy.memory.summaries import Summaries, WrittenNotes

KEY = Key("default", "s1")
HOT = 40


class CountingStore(SessionStore):
    """Counts the entries that are read of the cold part."""

    entries_read = 0

    async def cold(self, key: Key, *, start: int = 0, limit: int = 1000) -> list[bytes]:
        blobs = await super().cold(key, start=start, limit=limit)
        self.entries_read += len(blobs)
        return blobs


async def stored(entries: Sequence[Entry], cold: int, **fields: Any) -> tuple[CountingStore, Session]:
    store = CountingStore(VolatileStore(), codec=Plain())
    session = Session(entries=tuple(entries[cold:]), cold_count=cold, user="ann", **fields)
    blobs = [msgspec.msgpack.encode(entry) for entry in entries[:cold]]
    assert await store.write(KEY, BlobWrite(encode(session), version=0, ttl=600, cold=blobs))
    return store, session


def spoken(turn: TurnRef) -> list[Entry]:
    call, number = turn
    return [
        Entry(role=role, call=call, turn=number, content=f"{role} {number}", user="ann")
        for role in ("user", "assistant")
    ]


@given(
    lengths=st.lists(st.integers(1, 400), min_size=1, max_size=3),
    hot=st.integers(0, 60),
    place=st.floats(0, 1),
)
def test_all_behind_a_turn_is_read_in_order(lengths: list[int], hot: int, place: float) -> None:
    turns = [TurnRef(call, number) for call, length in enumerate(lengths) for number in range(length)]
    entries = [entry for turn in turns for entry in spoken(turn)]
    since = turns[min(len(turns) - 1, int(place * len(turns)))]

    async def read() -> None:
        store, session = await stored(entries, max(0, len(entries) - hot))
        assert await store.entries(KEY, session) == tuple(entries)
        store.entries_read = 0
        pages = [page async for page in store.pages(KEY, session, since=since)]
        some = [entry for page in pages for entry in page]
        assert some == entries[len(entries) - len(some) :]
        needed = len(entries) - bisect.bisect_left(entries, since, key=lambda one: one.turn_ref)
        assert needed <= len(some) + 1, "the end of the turn before, at least"
        assert store.entries_read <= needed + 100 + 12

    asyncio.run(read())


@pytest.mark.parametrize("is_deleted", [False, True])
def test_nothing_is_read_of_what_is_not_needed_or_not_there(*, is_deleted: bool) -> None:
    entries = [entry for number in range(300) for entry in spoken(TurnRef(0, number))]

    async def read() -> None:
        store, session = await stored(entries, len(entries) - HOT)
        since = TurnRef(0, 99) if is_deleted else session.entries[0].turn_ref
        if is_deleted:
            await store.delete(KEY)
        pages = [page async for page in store.pages(KEY, session, since=since)]
        assert pages == [session.entries]
        assert store.entries_read == 0

    asyncio.run(read())


class Model:
    """Answers whatever it is asked with a word, and finds no facts."""

    async def notes(self, *_: Any, **__: Any) -> WrittenNotes:
        return WrittenNotes("notes", "m")

    merge = notes

    async def facts(self, *_: Any, **__: Any) -> list[Any]:
        return []


def segments(turns: int) -> tuple[Segment, ...]:
    """Those of a long call: a merger of the oldest, digests of the newest."""
    ends = [turns - 80, turns - 60, turns - 40]
    return tuple(
        Segment(
            text="x", call=0, turn=end, messages=40, fingerprint="", created_at=1.0, extractive=end > ends[0]
        )
        for end in ends
    )


async def summary(store: SessionStore) -> None:
    window = SessionLimits(max_messages=60, keep_messages=10, summaries=10)
    assert await Summaries(store, window, Model()).run(KEY, 0)


async def merger(store: SessionStore) -> None:
    window = SessionLimits(max_messages=600, keep_messages=10, summaries=2)
    assert await Summaries(store, window, Model()).run(KEY, 0)


async def facts(store: SessionStore) -> None:
    job = FactExtraction(store, UserFacts(None), Model(), pause=20)  # type: ignore[arg-type]
    job._facts.current = nothing  # type: ignore[method-assign]
    assert await job.run(KEY, 0)


async def failing_facts(store: SessionStore) -> None:
    """Those of a call of which no model can make anything, again and again."""
    job = FactExtraction(store, UserFacts(None), Model(), pause=20)  # type: ignore[arg-type]
    job._facts.current = nothing  # type: ignore[method-assign]
    stored = await store.load(KEY)
    assert stored
    unlearned = msgspec.structs.replace(stored.session, learned_until=START)
    blob = encode(unlearned)
    assert await store.write(KEY, BlobWrite(blob, version=stored.version, ttl=600))
    assert await job.run(KEY, 3)


async def nothing(*_: Any, **__: Any) -> list[Any]:
    return []


@pytest.mark.parametrize(("job", "most"), [(summary, 420), (merger, 0), (facts, 330), (failing_facts, 700)])
def test_what_a_job_reads_of_a_call_does_not_grow_with_it(
    job: Callable[[SessionStore], Awaitable[None]], most: int
) -> None:
    async def read(turns: int) -> int:
        entries = [entry for number in range(turns) for entry in spoken(TurnRef(0, number))]
        learned = TurnRef(0, turns - ENOUGH - 1)
        known = {"summaries": segments(turns), "learned_until": learned, "next_turn": turns}
        store, _ = await stored(entries, len(entries) - HOT, **known)
        await job(store)
        return store.entries_read

    reads = [asyncio.run(read(turns)) for turns in (400, 4000)]
    assert max(reads) <= most
    assert reads[1] - reads[0] <= 12, "to find the place takes a few more"
