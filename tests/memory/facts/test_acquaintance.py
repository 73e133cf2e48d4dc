"""Facts that come too late are asked for no more, for a second."""

import asyncio

import pytest

from proxy.memory.archive.archive import Fact
from proxy.memory.facts.acquaintance import Acquaintance
from proxy.memory.facts.knowledge import Knowledge
from proxy.memory.faults import StoreError
from proxy.memory.owner import Owner
from tests.hurried_loop import run

ANN = Owner("acme", "ann")
FACT = Fact(id="f1", text="Has a dog.", created=1.0)


class Slow:
    """Facts that take their time."""

    def __init__(self, takes: float) -> None:
        self.takes = takes
        self.asked = 0

    async def facts(self, person: Owner, *, now: float, superseded: bool = False) -> list[Fact]:
        self.asked += 1
        await asyncio.sleep(self.takes)
        return [FACT]


async def of(acquaintance: Acquaintance) -> object:
    """What is known, or how long it took to find that it cannot be told."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        return await acquaintance.of(ANN)
    except StoreError:
        return pytest.approx(loop.time() - began, abs=0.01)


async def asked_thrice() -> tuple[list[object], int]:
    shelf = Slow(5.0)
    acquaintance = Acquaintance(Knowledge(shelf), deadline=0.05)
    answers = [await of(acquaintance), await of(acquaintance)]
    shelf.takes = 0.0
    await asyncio.sleep(1.0)
    return [*answers, await of(acquaintance)], shelf.asked


def test_what_came_too_late_is_asked_for_again_after_a_second() -> None:
    answers, asked = run(asked_thrice())
    assert answers == [0.05, 0.0, [FACT]]
    assert asked == 2
