"""What is left of a minute, and what asking for it costs."""

import asyncio

import pytest

from proxy.admission.quota import RateLimits, Remaining, Windows
from proxy.memory.stores.counts import Count, LocalCounts

BOTH = RateLimits(requests_per_minute=3, tokens_per_minute=10)


class Watched(LocalCounts):
    """Notes what is asked of it; its clock stands still."""

    def __init__(self) -> None:
        super().__init__(lambda: 100.0)
        self.asked: list[tuple[str, int]] = []

    async def add(self, key: str, amount: int, *, lasting: float) -> Count:
        self.asked.append((key, amount))
        return await super().add(key, amount, lasting=lasting)


def test_each_limit_is_asked_for_once() -> None:
    counts = Watched()
    left = asyncio.run(Windows(BOTH, counts).count_request("acme"))
    assert counts.asked == [("requests/acme", 1), ("tokens/acme", 0)]
    assert left == {"requests": Remaining(3, 2, 60.0), "tokens": Remaining(10, 10, 60.0)}


@pytest.mark.parametrize(("spent", "left"), [(9, 1), (10, -1), (25, -1)])
def test_a_turn_is_let_in_while_any_token_is_left(spent: int, left: int) -> None:
    async def asked() -> dict[str, Remaining]:
        windows = Windows(BOTH, LocalCounts())
        await windows.add_tokens("acme", spent)
        await windows.add_tokens("other", 5)
        return await windows.count_request("acme")

    assert asyncio.run(asked())["tokens"].remaining == left


def test_of_requests_there_are_as_many_as_the_limit_says() -> None:
    async def asked() -> list[int]:
        windows = Windows(RateLimits(requests_per_minute=3), LocalCounts())
        return [(await windows.count_request("acme"))["requests"].remaining for _ in range(5)]

    assert asyncio.run(asked()) == [2, 1, 0, -1, -1]
