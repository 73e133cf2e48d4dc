"""Large bodies are put together outside of the event loop, and take no more memory than their size."""

import asyncio
import time
import tracemalloc
from typing import Any

from proxy.http.request import BodyLimit, read_body

PIECE, PIECES = b'"' + b"x" * 65_534 + b'"', 200


def test_a_large_body_is_put_together_beside_the_loop() -> None:
    async def check() -> tuple[bytes, float]:
        left, last = iter(range(PIECES)), 0.0

        async def receive() -> dict[str, Any]:
            nonlocal last
            number, last = next(left), time.thread_time()
            return {"type": "http.request", "body": PIECE, "more_body": number < PIECES - 1}

        whole = await read_body(receive, {}, BodyLimit(len(PIECE) * PIECES))
        return whole, time.thread_time() - last

    whole, on_loop = asyncio.run(check())
    assert whole == PIECE * PIECES
    began = time.thread_time()
    assert bytes(bytearray(whole)) == whole
    assert on_loop < (time.thread_time() - began) / 3


def test_a_body_in_tiny_pieces_takes_no_more_than_its_size() -> None:
    async def check() -> int:
        left, pieces = iter(range(100_000)), 100_000

        async def receive() -> dict[str, Any]:
            number = next(left)
            return {
                "type": "http.request",
                "body": b"%02d" % (number % 100),
                "more_body": number < pieces - 1,
            }

        whole = await read_body(receive, {"content-encoding": "identity"}, BodyLimit(2 * pieces))
        assert whole == b"".join(b"%02d" % number for number in range(100)) * (pieces // 100)
        return tracemalloc.get_traced_memory()[1]

    tracemalloc.start()
    try:
        assert asyncio.run(check()) < 1_000_000
    finally:
        tracemalloc.stop()
