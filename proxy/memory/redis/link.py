"""A Redis asked under a deadline."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from proxy.memory.redis.client import MOST_CONNECTIONS, Made
from proxy.memory.redis.fault import said
from proxy.memory.redis.scripts import Client
from proxy.memory.store import StoreError

T = TypeVar("T")

_GRACE = 12
"""Deadlines after which a command that nobody waits for any more loses its connection."""

_ROUNDS = 4


class Link:
    """Runs commands, each in a task that no caller's end touches: its reply is read by nobody else.

    Whoever asked waits until his deadline and not longer. A command that outlives it has a grace, so that a
    connection that is slow to be made is made all the same, and after it is ended with its connection.

    Once the server was lost or slow, all later commands run on a new client: no connection of that time, and
    no address that was found then, is used again. A Cluster's client does so itself, node by node.
    """

    def __init__(self, make: Callable[[], Made], *, deadline: float) -> None:
        self._make = make
        self._deadline = deadline
        self._made = make()
        self._room = asyncio.Semaphore(MOST_CONNECTIONS)
        self._under_way: dict[asyncio.Task[Any], Made] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def ask(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """What ``work`` returns. Raises StoreError, after one deadline at the latest."""
        due = asyncio.get_running_loop().time() + self._deadline
        await self._enter(due)
        made = self._made
        task = self._start(_run(work, made.client), made)
        try:
            await _wait(task, due)
        finally:
            if not task.done():
                self._outlived(task)
        if not task.done():
            self._lost(made, TimeoutError())
            raise StoreError(f"Redis took longer than {self._deadline * 1000:.0f} ms")
        return _result(task)

    async def aclose(self) -> None:
        """Waits for what is under way, for one deadline, then closes all connections."""
        self._closed = True
        self._renew(self._made)
        if self._closing:
            await asyncio.wait(self._closing, timeout=self._deadline)
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _enter(self, due: float) -> None:
        if self._room.locked():
            await self._room_by(due)
        else:  # nothing is waited for, and so nothing to be timed
            await self._room.acquire()
        if self._closed:
            self._room.release()
            raise StoreError("the store is closed")

    async def _room_by(self, due: float) -> None:
        try:
            async with asyncio.timeout_at(due):
                await self._room.acquire()
        except TimeoutError:
            raise StoreError("all connections to Redis are busy") from None

    def _start(self, work: Coroutine[Any, Any, T], made: Made) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._under_way[task] = made
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._room.release()
        made = self._under_way.pop(task)
        fault = None if task.cancelled() else task.exception()
        if isinstance(fault, Exception):
            self._lost(made, fault)
        _forget_frames(fault)

    def _outlived(self, task: asyncio.Task[Any]) -> None:
        bell = asyncio.get_running_loop().call_later(_GRACE * self._deadline, task.cancel)
        task.add_done_callback(lambda _: bell.cancel())

    def _lost(self, made: Made, fault: Exception) -> None:
        if made.is_lost(fault):
            self._renew(made)

    def _renew(self, made: Made) -> None:
        """Later commands run on a new client; the old one is closed when its last command has ended."""
        if made is not self._made:
            return
        if not self._closed:
            self._made = self._make()
        task = asyncio.get_running_loop().create_task(self._close(made))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self, made: Made) -> None:
        last = [task for task, its in self._under_way.items() if its is made]
        if last:
            await asyncio.wait(last)
        # Nobody is left to hear what a dead connection says of its end.
        with contextlib.suppress(Exception):
            await made.close()


async def _run(work: Callable[[Client], Coroutine[Any, Any, T]], client: Client) -> T:
    # A Cluster's client that does not know its nodes yet would send this to any of them.
    await client.initialize()
    return await work(client)


async def _wait(task: asyncio.Task[Any], due: float) -> None:
    """Until the task has ended, or ``due``.

    Where our own loop was late, the reply may have arrived and not been looked at: that takes some rounds.
    """
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    bell = loop.call_at(due, _ring, over)
    ended = partial(_ring, over)
    task.add_done_callback(ended)
    try:
        await over
    finally:
        bell.cancel()
        task.remove_done_callback(ended)
    for _ in range(_ROUNDS):
        if task.done():
            break
        await asyncio.sleep(0)


def _ring(over: asyncio.Future[None], *_: object) -> None:
    if not over.done():
        over.set_result(None)


def _result(task: asyncio.Task[T]) -> T:
    if task.cancelled():
        raise StoreError("the store is closed")
    fault = task.exception()
    if fault is None:
        return task.result()
    if not isinstance(fault, Exception):
        raise fault
    raise StoreError(said(fault)) from None  # its own words may quote what was to be stored


def _forget_frames(fault: BaseException | None) -> None:
    """Lets go of where a fault came from.

    The loop's connecting keeps its own faults in its frames: a client with all its parts would wait for the
    collector, one for each attempt while a Redis is away.
    """
    while fault is not None:
        fault.__traceback__ = None
        fault = fault.__cause__ or fault.__context__
