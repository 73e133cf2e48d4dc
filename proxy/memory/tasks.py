"""Helpers for asyncio: waiting with a deadline, and long work in a thread."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

_ROUNDS: Final = 8
# This many messages take about ten milliseconds. Calls have fewer, and need no thread.
MANY_MESSAGES: Final = 500
LARGE: Final = 100_000
"""The bytes of a conversation from which on work on it runs in a thread."""


class Tasks(set[asyncio.Task[Any]]):
    """Running tasks. The event loop has only weak references, so they could be garbage-collected."""

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts a task, which is removed from this set once it has ended."""
        task = asyncio.get_running_loop().create_task(work)
        self.add(task)
        task.add_done_callback(self.discard)
        return task


class Begun(Generic[T]):
    """Work that has run up to its first wait, so that its request is sent; to be awaited once.

    The work must not use ``asyncio.timeout``, which would cancel whatever the starting task waits for by
    then. A separate task would cost two rounds of the event loop, one to start and one to wake its waiter;
    under load a round takes milliseconds.
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
        """Runs the rest of the work."""
        return self  # type: ignore[return-value]

    async def rest(self) -> T:
        """The rest of the work as a coroutine, for a task."""
        return await self

    def __iter__(self) -> "Begun[T]":
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """Continues from the first wait or a later one."""
        if self._end is not None:
            end, self._end = self._end, None
            raise end
        if not self._is_resumed:
            self._is_resumed = True
            if self._first is None or not self._first.done():
                return self._first
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        """Continues with an error, such as a cancellation."""
        return self._work.throw(*error)

    def cancel(self) -> None:
        """Closes the work at its current wait."""
        self._work.close()


async def wait_for(work: Coroutine[Any, Any, T], within: float | None) -> T:
    """Returns the result of some work, which is cancelled with its caller.

    Raises TimeoutError after ``within`` seconds, not counting delays of the event loop.
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
    """Waits for a task, ``within`` seconds at most unless that is ``None``; returns whether it has ended.

    If the event loop was blocked, the reply may have arrived without being read, which takes some rounds.
    """
    await asyncio.wait({task}, timeout=within)
    for _ in range(_ROUNDS):
        if task.done():
            break
        await asyncio.sleep(0)
    return task.done()


async def wait_for_event(event: asyncio.Event, within: float | None) -> None:
    """Waits until an event is set, ``within`` seconds at most unless that is ``None``."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            await event.wait()


async def cancel_and_wait(task: asyncio.Task[Any] | None) -> None:
    """Cancels a task, if there is one, and returns once it has ended."""
    if task is not None:
        task.cancel()
        await asyncio.wait({task})


def settle(outcome: asyncio.Future[Any], result: Any) -> None:
    """Sets the result of a future, or its exception, unless its waiter was cancelled."""
    if outcome.done():
        return
    if isinstance(result, BaseException):
        outcome.set_exception(result)
    else:
        outcome.set_result(result)


def retrieve_exception(task: asyncio.Future[Any]) -> None:
    """Marks the exception of a task as retrieved, because its waiter may have been cancelled."""
    if not task.cancelled():
        task.exception()


def ignore_late_lookups(loop: asyncio.AbstractEventLoop) -> None:
    """Keeps a loop from reporting host names that were not found after their caller was cancelled.

    uvloop continues to look up the name of an abandoned connection and never retrieves the error. The failed
    connection was reported already.
    """

    def on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), socket.gaierror):
            loop.default_exception_handler(context)

    loop.set_exception_handler(on_error)


class LargeWork:
    """Runs work on large data in a thread, one piece at a time.

    A parser does not release the GIL, so that the event loop would wait for as many as there are threads. For
    work of milliseconds only: longer work that releases the GIL would delay other work needlessly.
    """

    def __init__(self) -> None:
        self._free = asyncio.Lock()

    async def run(self, work: Callable[[], T]) -> T:
        """Returns the result of work on ``LARGE`` data; do smaller work without a thread."""
        async with self._free:
            return await asyncio.to_thread(work)


async def in_thread_if_long(work: Callable[[], T], messages: int, size: int = 0) -> T:
    """Returns the result of work on messages; runs it in a thread if they are many, or large in bytes."""
    return work() if messages < MANY_MESSAGES and size < LARGE else await asyncio.to_thread(work)
