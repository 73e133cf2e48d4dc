"""Turns at once, to the very same moment; lengths of time as OpenAI writes them."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from proxy.admission.quota import Quota, RateLimits, duration
from proxy.errors import LimitExceeded
from proxy.http.reply import Reply


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0, "0ms"), (0.12, "120ms"), (0.9999, "1s"), (1, "1s"), (8.64, "8.64s"), (60, "1m0s"), (361.2, "6m1s")],
)
def test_a_duration_is_written_as_openai_writes_it(seconds: float, written: str) -> None:
    assert duration(seconds) == written


async def nowhere(_: MutableMapping[str, Any]) -> None:
    pass


async def turn(quota: Quota) -> str:
    """Why a turn was refused, or "done"."""
    try:
        async with quota.admit("acme", 0, Reply(nowhere)):
            return "done"
    except LimitExceeded as refused:
        return refused.type


async def bursts() -> list[list[str]]:
    """Each of four turns that begin before any of them has been counted; the second finds the places free."""
    quota = Quota(RateLimits(requests_per_minute=9, concurrent_streams=2))
    return [await asyncio.gather(*[turn(quota) for _ in range(4)]) for _ in range(2)]


def test_of_a_burst_no_more_are_let_in_than_there_are_places() -> None:
    assert asyncio.run(bursts()) == [["done", "done", "streams", "streams"]] * 2


async def refusals() -> list[str]:
    quota = Quota(RateLimits(requests_per_minute=1, concurrent_streams=1))
    return [await turn(quota) for _ in range(3)]


def test_who_is_refused_for_another_reason_gives_the_place_back() -> None:
    assert asyncio.run(refusals()) == ["done", "requests", "requests"]


async def left_after(asked: int, pieces: int) -> str:
    """The tokens that a turn of so many bytes leaves of a thousand, where its model counts none."""
    quota = Quota(RateLimits(tokens_per_minute=1000))
    headers: dict[bytes, bytes] = {}

    async def noted(message: MutableMapping[str, Any]) -> None:
        headers.update(message["headers"])

    async with quota.admit("acme", asked, reply := Reply(nowhere)):
        reply.record()
        reply.observation.chunks.extend([b"data: {}\n\n"] * pieces)
    await quota.aclose()
    async with quota.admit("acme", 0, reply := Reply(noted)):
        await reply.start(200, [])
    return headers[b"x-ratelimit-remaining-tokens"].decode()


def test_where_the_model_counts_no_tokens_four_bytes_are_one_and_each_piece_is() -> None:
    assert asyncio.run(left_after(asked=400, pieces=3)) == "897"
