"""A Redis asked under a deadline."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from redis.exceptions import RedisError

from proxy.memory.errors import StoreError
from proxy.memory.stores.redis_client import MOST_CONNECTIONS, Argument, Client, Direct, Made, describe

T = TypeVar("T")
Asked = TypeVar("Asked", bound="asyncio.Future[Any]")
_GRACE = 12
"""Deadlines after which a command that nobody waits for any more loses its connection."""
_LONGEST_GRACE = 2.0
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
        self._under_way: dict[asyncio.Future[Any], Made] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def ask(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """What ``work`` returns. Raises StoreError, after one deadline at the latest."""
        due = asyncio.get_running_loop().time() + self._deadline
        await self._enter(due)
        made = self._made
        task = self._followed(asyncio.get_running_loop().create_task(_run(work, made.client)), self._ended)
        try:
            await _wait(task, due)
        finally:
            if not task.done():
                self._outlived(task)
        if not task.done():
            self._lost(made, TimeoutError())
            raise self._late()
        return _result(task)

    async def command(self, *command: Argument) -> Any:
        """The reply to one command, as ``ask`` does it.

        Where a connection stands, nothing is between the command and its socket: no task, and no pool.
        """
        line = None if self._closed or not isinstance(self._made.client, Direct) else self._made.client.line
        if line is None:
            return await self.ask(lambda client: client.execute_command(*command))
        reply = self._followed(line.ask(command)[0], self._answered)
        loop = asyncio.get_running_loop()
        bell = loop.call_at(loop.time() + self._deadline, _overdue, reply, _ROUNDS)
        try:
            return await reply
        except RedisError as fault:
            raise StoreError(describe(fault)) from None  # its own words may quote what was to be stored
        except TimeoutError:
            raise self._late() from None
        finally:
            bell.cancel()

    async def aclose(self) -> None:
        """Waits for what is under way, for one deadline, then closes all connections."""
        self._closed = True
        self._renew(self._made)
        if self._closing:
            await asyncio.wait(self._closing, timeout=self._deadline)
        for asked in self._under_way:
            _stop(asked)
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _enter(self, due: float) -> None:
        if self._room.locked():
            await self._room_by(due)
        else:  # nothing is waited for, and so nothing to be timed
            await self._room.acquire()
        if self._closed:
            self._room.release()
            raise _closed()

    async def _room_by(self, due: float) -> None:
        try:
            async with asyncio.timeout_at(due):
                await self._room.acquire()
        except TimeoutError:
            raise StoreError("all connections to Redis are busy") from None

    def _late(self) -> StoreError:
        return StoreError(f"Redis took longer than {self._deadline * 1000:.0f} ms")

    def _followed(self, asked: Asked, ended: Callable[[Asked], None]) -> Asked:
        self._under_way[asked] = self._made
        asked.add_done_callback(ended)
        return asked

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._room.release()
        self._answered(task)

    def _answered(self, asked: asyncio.Future[Any]) -> None:
        made = self._under_way.pop(asked)
        fault = None if asked.cancelled() else asked.exception()
        if isinstance(fault, Exception):
            self._lost(made, fault)
        _forget_frames(fault)

    def _outlived(self, task: asyncio.Task[Any]) -> None:
        bell = asyncio.get_running_loop().call_later(
            min(_GRACE * self._deadline, _LONGEST_GRACE), task.cancel
        )
        task.add_done_callback(lambda _: bell.cancel())

    def _lost(self, made: Made, fault: Exception) -> None:
        if not self._closed and made.is_lost(fault):
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
        last = [asked for asked, its in self._under_way.items() if its is made]
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


def _overdue(reply: asyncio.Future[Any], rounds: int) -> None:
    """As ``_wait`` does where nobody else waits: a reply that may have arrived has some rounds."""
    if reply.done():
        return
    if rounds:
        asyncio.get_running_loop().call_soon(_overdue, reply, rounds - 1)
    else:
        reply.set_exception(TimeoutError())


def _stop(asked: asyncio.Future[Any]) -> None:
    if isinstance(asked, asyncio.Task):
        asked.cancel()
    elif not asked.done():
        asked.set_exception(_closed())


def _closed() -> StoreError:
    return StoreError("the store is closed")


def _ring(over: asyncio.Future[None], *_: object) -> None:
    if not over.done():
        over.set_result(None)


def _result(task: asyncio.Task[T]) -> T:
    if task.cancelled():
        raise _closed()
    fault = task.exception()
    if fault is None:
        return task.result()
    if not isinstance(fault, Exception):
        raise fault
    raise StoreError(describe(fault)) from None  # its own words may quote what was to be stored


def _forget_frames(fault: BaseException | None) -> None:
    """Lets go of where a fault came from.

    The loop's connecting keeps its own faults in its frames: a client with all its parts would wait for the
    collector, one for each attempt while a Redis is away.
    """
    while fault is not None:
        fault.__traceback__ = None
        fault = fault.__cause__ or fault.__context__
