"""Messages between processes arrive whole or not at all; important ones are retried if an inbox is full."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from proxy.server.bus import LARGEST, Bus, BusMessage, ErasureMessage, Inbox, WatchingMessage, inboxes

pytestmark = pytest.mark.anyio
NOTE = ErasureMessage("t", None, "ann")
UNTOLD: dict[str, Any] = {
    "longer than a note": "s" * LARGEST,
    "longer than a socket takes": "s" * 10 * LARGEST,
    "a number too large": 10**40,
    "half a character": "\ud800",
}


@pytest.fixture
def among() -> Iterator[list[Inbox]]:
    made = inboxes(3)
    yield made
    for end in itertools.chain(*made):
        end.close()


async def test_who_had_no_room_is_told_again_and_the_others_are_not(among: list[Inbox], monkeypatch):
    monkeypatch.setattr("proxy.server.bus._PAUSE", 0.01)
    teller, stalled, other = (Bus(among, place) for place in range(3))
    heard: dict[str, list[BusMessage]] = {"stalled": [], "other": []}
    other.receive(heard["other"].append)
    for _ in range(200):
        for _ in range(100):
            teller.send(WatchingMessage())
        await asyncio.sleep(0)
    teller.send_reliably(NOTE)
    await asyncio.sleep(0.1)
    stalled.receive(heard["stalled"].append)
    async with asyncio.timeout(5):
        while NOTE not in heard["stalled"]:  # noqa: ASYNC110 - it is told again when it is time
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert len(heard["stalled"]) < 20_000
    assert [each.count(NOTE) for each in heard.values()] == [1, 1]


async def test_who_never_has_room_is_told_no_more_after_a_while(among: list[Inbox], monkeypatch, caplog):
    monkeypatch.setattr("proxy.server.bus._TRIES", 2)
    teller = Bus(among, 0)
    for _ in range(20_000):
        teller.send(WatchingMessage())
    teller.send_reliably(NOTE)
    async with asyncio.timeout(5):
        while not caplog.records:  # noqa: ASYNC110 - it gives up when it is time
            await asyncio.sleep(0.01)
    assert "2 other processes may still have data" in caplog.text


async def heard(among: list[Inbox], *told: BusMessage | bytes) -> tuple[list[BusMessage], list[Any]]:
    """What arrives of notes, and of bytes that are none, and what fails meanwhile."""
    teller, listener = Bus(among, 0), Bus(among, 1)
    arrived: list[BusMessage] = []
    failed: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: failed.append(fault))
    listener.receive(arrived.append)
    for each in (*told, WatchingMessage()):
        among[1][1].send(each) if isinstance(each, bytes) else teller.send(each)
    async with asyncio.timeout(5):
        while WatchingMessage() not in arrived:  # noqa: ASYNC110 - it comes last
            await asyncio.sleep(0.01)
    return arrived[:-1], failed


@pytest.mark.parametrize("what", UNTOLD)
async def test_what_fits_no_note_is_not_told_and_others_are(among: list[Inbox], what: str):
    told = ErasureMessage("t", "s" * (LARGEST // 2), None)
    assert await heard(among, ErasureMessage("t", UNTOLD[what], None), told) == ([told], [])


@pytest.mark.parametrize("said", [b"\xc1", b"\x81\xa4type\xa5other"])
async def test_what_is_no_note_is_passed_over(among: list[Inbox], said: bytes):
    assert await heard(among, said) == ([], [])
