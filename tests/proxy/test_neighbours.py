"""What processes tell each other: mostly lost where there is no room, but not what is insisted on."""

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from proxy.neighbours import Forgotten, Inbox, Looking, Neighbours, Note, inboxes

pytestmark = pytest.mark.anyio
NOTE = Forgotten("t", None, "ann")


@pytest.fixture
def among() -> Iterator[list[Inbox]]:
    made = inboxes(3)
    yield made
    for end in itertools.chain(*made):
        end.close()


async def test_who_had_no_room_is_told_again_and_the_others_are_not(among: list[Inbox], monkeypatch):
    monkeypatch.setattr("proxy.neighbours._PAUSE", 0.01)
    teller, stalled, other = (Neighbours(among, place) for place in range(3))
    heard: dict[str, list[Note]] = {"stalled": [], "other": []}
    other.listen(heard["other"].append)
    for _ in range(200):
        for _ in range(100):
            teller.tell(Looking())
        await asyncio.sleep(0)
    teller.insist(NOTE)
    await asyncio.sleep(0.1)
    stalled.listen(heard["stalled"].append)
    async with asyncio.timeout(5):
        while NOTE not in heard["stalled"]:  # noqa: ASYNC110 - it is told again when it is time
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert len(heard["stalled"]) < 20_000
    assert [each.count(NOTE) for each in heard.values()] == [1, 1]


async def test_who_never_has_room_is_told_no_more_after_a_while(among: list[Inbox], monkeypatch, caplog):
    monkeypatch.setattr("proxy.neighbours._TRIES", 2)
    teller = Neighbours(among, 0)
    for _ in range(20_000):
        teller.tell(Looking())
    teller.insist(NOTE)
    async with asyncio.timeout(5):
        while not caplog.records:  # noqa: ASYNC110 - it gives up when it is time
            await asyncio.sleep(0.01)
    assert "may still be kept by 2 other" in caplog.text
