"""Confirmed changes of facts are made, even if the client hangs up or the store is away for long."""

import asyncio

import pytest

from proxy.memory.errors import StoreError
from proxy.memory.facts import user_facts
from proxy.memory.facts.user_facts import PendingChanges

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Place:
    """Takes what it is given, once it is back."""

    def __init__(self, away: int = 0, *, broken: bool = False):
        self.away, self.broken, self.taken = away, broken, []

    def take(self, what):
        async def work():
            if self.broken:
                raise ValueError(what)
            if self.away:
                self.away -= 1
                raise StoreError("away")
            self.taken.append(what)

        return work


async def test_all_is_done_in_its_order_though_the_store_is_away():
    place = Place(away=2)
    await PendingChanges().start([place.take(n) for n in range(3)])
    assert place.taken == [0, 1, 2]


async def test_what_cannot_be_done_holds_up_no_other(caplog):
    broken, place = Place(broken=True), Place()
    await PendingChanges().start([broken.take("a secret"), place.take(1)])
    assert place.taken == [1]
    assert "ValueError" in caplog.text and "secret" not in caplog.text


async def test_a_store_that_stays_away_is_given_up(monkeypatch, caplog):
    monkeypatch.setattr(user_facts, "_OUTAGE", 0.25)
    place = Place(away=1000)
    await PendingChanges().start([place.take(1), place.take(2)])
    assert place.taken == []
    assert caplog.text.count("could not be written") == 2


async def test_the_end_waits_for_what_is_promised():
    place, made = Place(away=1), PendingChanges()
    asyncio.get_running_loop().call_soon(made.start, [place.take(1)])
    await asyncio.sleep(0)
    await made.drain()
    assert place.taken == [1]
