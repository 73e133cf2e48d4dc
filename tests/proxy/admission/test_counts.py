"""Numbers of one process, which expire by a clock that only rises."""

import asyncio

from proxy.admission.counts import OwnCounts


async def told() -> list[float]:
    now = 100.0
    counts = OwnCounts(lambda: now)
    seen: list[float] = [
        await counts.incr("a", 60),
        await counts.incr("a", 60, 2),
        await counts.incr("b", 60),
    ]
    now = 159.9
    seen += [await counts.get("a"), await counts.incr("a", 60)]
    now = 160.0
    seen += [await counts.get("a"), await counts.incr("a", 60), await counts.get("c")]
    await counts.clear("a")
    return [*seen, await counts.get("a"), await counts.check(), await counts.reset() or 0]


def test_a_number_expires_so_long_after_it_was_first_added_to() -> None:
    assert asyncio.run(told()) == [1, 3, 1, 3, 4, 0, 1, 0, 0, True, 1]
