"""How memory is assembled when a question comes: three kinds at once, under one deadline."""

import asyncio
import time
from collections.abc import Awaitable, Sequence

import pytest

from filters.message import Message
from proxy.memory.assembly import Assembled, assemble, talk
from proxy.memory.contents import imported
from proxy.memory.session import encode
from proxy.memory.store import Key, Store, StoreError

pytestmark = pytest.mark.anyio

KEY = Key("t", "s")


async def after(seconds: float, *found: str) -> Sequence[str]:
    await asyncio.sleep(seconds)
    return found


async def failing(fault: Exception) -> Sequence[str]:
    raise fault


async def assembled(stm: Awaitable, ltm: Awaitable, search: Awaitable, deadline: float = 1.0) -> Assembled:
    return await assemble(stm=stm, ltm=ltm, search=search, deadline=deadline)


async def test_what_was_said_is_told_in_lines_of_role_and_content(store: Store):
    said = [
        Message(role="user", content="Where is\nmy parcel?", turn_id=1),
        Message(role="assistant", tool_calls=[{"id": "c", "function": {"name": "find"}}], turn_id=1),
        Message(role="tool", tool_call_id="c", content='{"at": "Hanover"}', turn_id=1),
        Message(role="assistant", content="In Hanover.", turn_id=1),
    ]
    assert await talk(store, KEY) == []
    assert await store.write(KEY, encode(imported(said, now=1.0)), version=0, ttl=60)
    found = await assembled(talk(store, KEY), after(0, "Lives in Bonn."), after(0, "Parcels take two days."))
    assert found == Assembled(
        stm=("user: Where is my parcel?", "assistant: In Hanover."),
        ltm=("Lives in Bonn.",),
        chunks=("Parcels take two days.",),
    )


async def test_all_three_are_asked_at_once():
    all_asked = asyncio.Barrier(3)

    async def together(found: str) -> Sequence[str]:
        await all_asked.wait()
        return [found]

    found = await assembled(together("a"), together("b"), together("c"), deadline=10)
    assert str(found) == "b\n\nc\n\na"


async def test_what_is_late_is_left_out_and_stopped():
    stopped = asyncio.Event()

    async def slow() -> Sequence[str]:
        try:
            return await after(30, "late")
        finally:
            stopped.set()

    began = time.monotonic()
    found = await assembled(after(0, "user: Hi"), slow(), after(0, "chunk"), deadline=0.1)
    assert time.monotonic() - began < 10
    assert found == Assembled(stm=("user: Hi",), chunks=("chunk",), late=("ltm",))
    await asyncio.wait_for(stopped.wait(), 10)


@pytest.mark.parametrize("fault", [StoreError("gone"), RuntimeError("Ann's words")])
async def test_what_fails_is_left_out_and_no_word_of_it_logged(fault: Exception, caplog):
    found = await assembled(failing(fault), after(0, "fact"), failing(fault))
    assert found == Assembled(ltm=("fact",), late=("stm", "search"))
    assert "Ann" not in caplog.text


async def test_whoever_hangs_up_stops_them_all():
    stopped: list[str] = []

    async def slow(name: str) -> Sequence[str]:
        try:
            return await after(30)
        finally:
            stopped.append(name)

    asking = asyncio.create_task(assembled(slow("stm"), slow("ltm"), slow("search"), deadline=30))
    await asyncio.sleep(0.05)
    asking.cancel()
    await asyncio.wait({asking})
    await asyncio.sleep(0)
    assert asking.cancelled()
    assert sorted(stopped) == ["ltm", "search", "stm"]
