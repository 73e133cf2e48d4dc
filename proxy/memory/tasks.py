"""Helpers for asyncio: waiting with a deadline, and long work in a thread."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

_ROUNDS: Final = 8
# So many messages take some ten milliseconds. Calls have fewer, and need no thread.
MANY_MESSAGES: Final = 500
LARGE: Final = 100_000
"""How many bytes of a conversation are many."""


class Tasks(set[asyncio.Task[Any]]):
    """Tasks that are under way: the event loop itself would let them vanish before they end."""

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts some work, whose task leaves this set once it has ended."""
        task = asyncio.get_running_loop().create_task(work)
        self.add(task)
        task.add_done_callback(self.discard)
        return task


class Begun(Generic[T]):
    """Work that was run up to its first wait, so that what it asks for is on its way; it is awaited once.

    The work must not use ``asyncio.timeout``, which would end whatever the task that began it waits for by
    then. A task of its own would begin in the loop's next round, and its end wake the other one in yet
    another: under load a round takes milliseconds.
    """

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._is_resumed = False
        self._first: Any = None
        self._end: BaseException | None = None
        try:
            self._first = work.send(None)
        except BaseException as end:  # noqa: BLE001 - it is raised where this is awaited, and the result as StopIteration
            self._end = end

    def __await__(self) -> Generator[Any, Any, T]:
        """The rest of the work."""
        return self  # type: ignore[return-value]

    async def rest(self) -> T:
        """The rest of the work as a coroutine, such as a task takes."""
        return await self

    def __iter__(self) -> "Begun[T]":
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """Goes on, from the first wait or a later one."""
        if self._end is not None:
            end, self._end = self._end, None
            raise end
        if not self._is_resumed:
            self._is_resumed = True
            if self._first is None or not self._first.done():
                return self._first
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        """Goes on with an error, such as a cancellation."""
        return self._work.throw(*error)

    def cancel(self) -> None:
        """Ends the work where it waits."""
        self._work.close()


async def wait_for(work: Coroutine[Any, Any, T], within: float | None) -> T:
    """The result of some work, which is cancelled with its caller.

    Raises TimeoutError after ``within`` seconds, of which those do not count that the event loop was late.
    """
    task = asyncio.create_task(work)
    task.add_done_callback(retrieve_exception)
    try:
        if not await wait_until_done(task, within):
            raise TimeoutError
    finally:
        task.cancel()
    return task.result()


async def wait_until_done(task: asyncio.Task[Any], within: float | None) -> bool:
    """Whether a task has ended, after ``within`` seconds at the latest where that is given.

    Where the event loop was late, the reply may have arrived and not been looked at: that takes some rounds.
    """
    await asyncio.wait({task}, timeout=within)
    for _ in range(_ROUNDS):
        if task.done():
            break
        await asyncio.sleep(0)
    return task.done()


async def wait_for_event(event: asyncio.Event, within: float | None) -> None:
    """Returns once an event is set, after ``within`` seconds at the latest where that is given."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            await event.wait()


def retrieve_exception(task: asyncio.Future[Any]) -> None:
    """Marks the exception of a task as retrieved: its waiter may have left."""
    if not task.cancelled():
        task.exception()


def ignore_late_lookups(loop: asyncio.AbstractEventLoop) -> None:
    """Has a loop say nothing of host names that were not found once their caller had left.

    uvloop goes on looking up a name for a connection that was given up, and retrieves nothing of it: that
    there is no connection was said already.
    """

    def on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), socket.gaierror):
            loop.default_exception_handler(context)

    loop.set_exception_handler(on_error)


class LargeWork:
    """Work on much data, a piece at a time in a thread.

    A parser lets nothing else run while it reads, and the event loop would wait for as many as there are
    threads. It is for work of milliseconds: what takes longer, and gives way meanwhile, would hold up others.
    """

    def __init__(self) -> None:
        self._free = asyncio.Lock()

    async def run(self, work: Callable[[], T]) -> T:
        """The result of work on ``LARGE`` data; smaller is better done at once."""
        async with self._free:
            return await asyncio.to_thread(work)


async def in_thread_if_long(work: Callable[[], T], messages: int, size: int = 0) -> T:
    """The result of work on so many messages, or bytes of them, done in a thread where they are many."""
    return work() if messages < MANY_MESSAGES and size < LARGE else await asyncio.to_thread(work)
