"""Turns that hosts share for their pages: as they were, encrypted, and few bytes a second of each process."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy import shared_traces
from proxy.memory.errors import StoreError
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.encryption import Encryption
from proxy.memory.stores.redis_turns import RedisTurns
from proxy.memory.stores.store import KeptTurn, Key, Owner
from proxy.shared_traces import SharedTraces
from proxy.traces import Retention, Traces
from tests.peers import redis_server
from tests.proxy.test_traces import end

pytestmark = pytest.mark.anyio
KEEP = 20


@pytest.fixture
async def turns(tmp_path: Path) -> AsyncIterator[RedisTurns]:
    with redis_server.single(tmp_path) as server:
        async with aclosing(RedisTurns(server.url)) as opened:
            yield opened


def sharing(
    turns: RedisTurns, key: bytes = b"k" * 32, *, with_text: bool = True
) -> tuple[Traces, SharedTraces]:
    traces, shared = Traces(), SharedTraces(turns, Encryption([key]), with_text=with_text)
    traces.set_retention(Retention(turns=KEEP, content=True))
    traces.shared = shared
    return traces, shared


async def test_a_turn_is_at_another_host_what_it_was(turns: RedisTurns) -> None:
    traces, shared = sharing(turns)
    id_ = end(traces, session="s", user="ann")
    await shared.flush()
    _, elsewhere = sharing(turns)
    (own,), (other,) = traces.newest("t", "s"), await elsewhere.with_content(await elsewhere.reports("t"))
    assert other.report.id == id_
    assert other.start == pytest.approx(own.start, abs=0.5)
    assert other.end - other.start == pytest.approx(own.end - own.start)
    assert [(name, at - other.start) for name, at in other.marks] == [
        (name, pytest.approx(at - own.start)) for name, at in own.marks
    ]
    assert len(other.chunks) == own.count
    assert (other.count, other.answer, other.size) == (own.count, b"ab", own.size)
    assert other.content
    assert own.content
    assert other.content.request.messages == own.content.request.messages
    _, stranger = sharing(turns, b"s" * 32)
    assert await stranger.reports("t") == []


async def test_no_words_leave_a_process_that_may_send_none(turns: RedisTurns) -> None:
    traces, shared = sharing(turns, with_text=False)
    end(traces)
    await shared.flush()
    (trace,) = await shared.with_content(await shared.reports("t"))
    assert (trace.content, trace.answer, trace.size, trace.report.excerpt) == (None, b"", 0, None)


async def test_words_are_removed_from_a_session_alone_and_the_rest_of_its_turns_stays(
    turns: RedisTurns,
) -> None:
    traces, shared = sharing(turns)
    mine, other = end(traces, session="s"), end(traces, session="other")
    (trace,) = traces.newest("t", "s")
    shared.set_written(msgspec.structs.replace(trace, written_at=trace.start + 2.5))
    shared.remove_contents(Key("t", "s"))
    await shared.aclose()
    found = {each.report.id: each for each in await shared.with_content(await shared.reports("t"))}
    assert {id_: bool(each.content) for id_, each in found.items()} == {mine: False, other: True}
    assert found[mine].written_at
    assert found[mine].written_at - found[mine].start == pytest.approx(2.5)
    assert found[other].written_at is None


async def test_what_was_sent_is_not_sent_again(turns: RedisTurns, monkeypatch: pytest.MonkeyPatch) -> None:
    traces, shared = sharing(turns)
    sent = []

    async def add(_tenant: str, batch: Sequence[KeptTurn], *, keep: int) -> None:
        sent.append([turn.id for turn in batch])

    monkeypatch.setattr(turns, "add", add)
    first = end(traces)
    await shared.flush()
    second = end(traces)
    await shared.flush()
    await shared.flush()
    assert sent == [[first], [second]]


async def test_each_host_has_the_turns_of_all_once_and_their_words_when_they_are_looked_at(
    turns: RedisTurns,
) -> None:
    (here, own), (there, others) = sharing(turns), sharing(turns)
    mine, theirs = end(here, session="s", user="ann"), end(there, session="s", user="ann")
    await own.flush()
    await others.flush()
    await here.fetch("t")
    found = [*here.newest("t")]
    assert sorted(trace.report.id for trace in found) == sorted([mine, theirs])
    assert {trace.report.id: trace.content is None for trace in found} == {mine: False, theirs: True}
    assert all(trace.content for trace in await here.with_content(found))
    assert len({trace.report.id for trace in here.newest("t", "s")}) == 2
    assert [*here.newest("u")] == []


@pytest.mark.parametrize("fetched", [True, False], ids=["that was fetched", "that is yet to be fetched"])
async def test_what_another_host_has_of_an_erased_session_is_shown_no_more(
    turns: RedisTurns, *, fetched: bool
) -> None:
    (here, _), (there, others) = sharing(turns), sharing(turns)
    erased, other = end(there, session="s", user="ann"), end(there, session="other", user="ann")
    await others.flush()
    if fetched:
        await here.fetch("t")
        assert {trace.report.id for trace in here.newest("t")} == {erased, other}
    here.remove("t", session="s")  # as it is told by the process that erases it
    if not fetched:
        await here.fetch("t")
    assert [trace.report.id for trace in here.newest("t")] == [other]


async def test_a_session_is_erased_where_all_hosts_read_it(turns: RedisTurns) -> None:
    (here, _), (there, others) = sharing(turns), sharing(turns)
    end(there, session="s", user="ann")
    kept = end(there, session="other", user="ann")
    await others.flush()
    assert await here.forget_session(Key("t", "s"), at=0.0) == {"kept_turns": 1}
    assert [trace.report.id for trace in await others.reports("t")] == [kept]
    assert await here.forget(Owner("t", "ann"), at=0.0) == {"kept_turns": 1}
    assert await others.reports("t") == []


@pytest.mark.parametrize("erased", [{"user": "ann"}, {"session": "s"}])
async def test_the_turns_of_a_session_and_of_a_user_are_found_by_hashes_with_a_key(
    turns: RedisTurns, monkeypatch: pytest.MonkeyPatch, erased: dict[str, str]
) -> None:
    names = []
    add = turns.add

    async def noting(tenant: str, batch: Sequence[KeptTurn], *, keep: int) -> None:
        names.extend(name for turn in batch for name in turn.names)
        await add(tenant, batch, keep=keep)

    monkeypatch.setattr(turns, "add", noting)
    traces, shared = sharing(turns)
    end(traces, session="s", user="ann")
    other = end(traces, session="other", user="bob")
    await shared.flush()
    assert len(names) == 4
    assert hashlib.blake2b(b"uann", digest_size=len(names[0]) // 2).hexdigest() not in names
    assert await shared.erase("t", **erased) == 1
    assert [trace.report.id for trace in await shared.reports("t")] == [other]


class Kept:
    """Takes turns, as a Redis does."""

    def __init__(self) -> None:
        self.batches: list[tuple[float, Sequence[KeptTurn]]] = []

    async def add(self, _tenant: str, turns: Sequence[KeptTurn], *, keep: int) -> None:
        assert keep == KEEP
        self.batches.append((time.monotonic(), turns))


async def test_a_process_with_many_turns_sends_the_newest_of_them_and_not_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rate = 20_000
    monkeypatch.setattr(shared_traces, "_BATCH_TIME", 0.05)
    monkeypatch.setattr(shared_traces, "_BYTES_A_SECOND", rate)
    kept, traces = Kept(), Traces()
    shared: Any = SharedTraces(kept, Plain(), with_text=True)  # type: ignore[arg-type]
    traces.set_retention(Retention(turns=KEEP, content=True))
    traces.shared = shared
    ended = []
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        ended.append(end(traces))
        await asyncio.sleep(0.005)
    await shared.aclose()
    batches = [turns for _, turns in kept.batches]
    assert len(batches) > 1
    assert all(len(turns) <= KEEP for turns in batches)
    for (at, turns), (later, _) in zip(kept.batches, kept.batches[1:-1], strict=False):
        assert later - at >= sum(len(turn.report) + len(turn.content) for turn in turns) / rate
    assert {turn.id for turn in batches[-1]} == set(ended[-len(batches[-1]) :])
    assert len(ended) > sum(map(len, batches)), "and most are left out"


async def test_while_the_store_refuses_turns_only_the_newest_wait_for_it() -> None:
    traces, ended, kept = Traces(), list[str](), Kept()

    class Refusing:
        async def add(self, _tenant: str, _turns: Sequence[KeptTurn], *, keep: int) -> None:
            ended.extend(end(traces) for _ in range(keep))
            raise StoreError("Redis cannot be reached")

    shared: Any = SharedTraces(Refusing(), Plain(), with_text=True)  # type: ignore[arg-type]
    traces.set_retention(Retention(turns=KEEP, content=True))
    traces.shared = shared
    ended.append(end(traces))
    for _ in range(5):
        await shared.flush()
    shared._turns = kept
    await shared.aclose()
    ((_, batch),) = kept.batches
    assert [turn.id for turn in batch] == ended[: -KEEP - 1 : -1]
