"""An asynchronous test ends in time, and has as much of it as its mark says."""

import asyncio

import pytest

from tests.in_time import MINUTE, in_time, time_of


def test_a_test_has_a_minute(request: pytest.FixtureRequest) -> None:
    assert time_of(request.node) == MINUTE


@pytest.mark.timeout(600)
def test_a_test_has_the_time_that_its_mark_gives(request: pytest.FixtureRequest) -> None:
    assert time_of(request.node) == 600


def test_what_takes_longer_is_cancelled_and_says_why() -> None:
    async def slow() -> None:
        with in_time(0.01):
            await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError, match=r"more than 0\.01 s"):
        asyncio.run(slow())


def test_what_ends_in_time_is_left_alone() -> None:
    async def quick() -> str:
        with in_time(0.01):
            await asyncio.sleep(0)
        await asyncio.sleep(0.03)
        return "done"

    assert asyncio.run(quick()) == "done"
