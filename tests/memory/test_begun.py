"""Work that is begun before it is awaited."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from proxy.memory.tasks import Begun

RUNNERS = [asyncio.run, uvloop.run]
Run = Callable[[Coroutine[Any, Any, None]], None]


async def work(reply: "asyncio.Future[int]", steps: list[str]) -> int:
    steps.append("asked")
    try:
        first = await reply
        await asyncio.sleep(0)
        return first + await reply
    except asyncio.CancelledError:
        steps.append("cancelled")
        raise
    finally:
        steps.append("ended")


@pytest.mark.parametrize("run", RUNNERS)
@pytest.mark.parametrize("is_early", [True, False], ids=["answered before", "answered while it waits"])
def test_it_has_asked_before_it_is_awaited(run: Run, is_early: bool) -> None:
    async def main() -> None:
        steps: list[str] = []
        reply = asyncio.get_running_loop().create_future()
        begun = Begun(work(reply, steps))
        assert steps == ["asked"]
        if is_early:
            reply.set_result(2)
        else:
            asyncio.get_running_loop().call_later(0.01, reply.set_result, 2)
        assert await begun == 4
        assert steps == ["asked", "ended"]

    run(main())


@pytest.mark.parametrize("run", RUNNERS)
def test_what_ends_at_once_is_its_result_where_it_is_awaited(run: Run) -> None:
    async def five() -> int:
        return 5

    async def fails() -> int:
        raise ValueError("wrong")

    async def main() -> None:
        assert await Begun(five()) == 5
        begun = Begun(fails())
        with pytest.raises(ValueError, match="wrong"):
            await begun

    run(main())


@pytest.mark.parametrize("run", RUNNERS)
def test_it_is_cancelled_with_the_task_that_awaits_it(run: Run) -> None:
    async def main() -> None:
        steps: list[str] = []
        reply = asyncio.get_running_loop().create_future()

        async def asking() -> int:
            return await Begun(work(reply, steps))

        task = asyncio.create_task(asking())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert reply.cancelled()
        assert steps == ["asked", "cancelled", "ended"]

    run(main())


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "dropped"])
def test_one_that_is_not_awaited_ends_where_it_waits(is_cancelled: bool) -> None:
    async def main() -> None:
        steps: list[str] = []
        begun = Begun(work(asyncio.get_running_loop().create_future(), steps))
        if is_cancelled:
            begun.cancel()
        else:
            del begun
        assert steps == ["asked", "ended"]

    asyncio.run(main())
