"""Sends commands to a Redis within a deadline, over a client that is replaced when its server is lost."""

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

from redis.asyncio import RedisCluster
from redis.exceptions import NoScriptError, RedisClusterException, RedisError

from proxy.memory.errors import StoreError
from proxy.memory.stores.addresses import RedisAddress
from proxy.memory.stores.redis_client import Argument, RedisClient, client_factory, describe_error
from proxy.memory.tasks import Tasks, settle, wait_until_done

T = TypeVar("T")
Pending = TypeVar("Pending", bound="asyncio.Future[Any]")

_GRACE: Final = 12
"""Deadlines after which an abandoned command is cancelled and its connection closed."""
_MAX_GRACE: Final = 2.0
_ROUNDS: Final = 4


class Script:
    """A Lua script over keys of one slot; calling it with keys and arguments returns a ScriptCall."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

    def __call__(self, keys: Sequence[str], *arguments: Argument) -> "ScriptCall":
        """Returns a call, which is not sent yet."""
        return ScriptCall(self, keys, arguments)


class ScriptCall(NamedTuple):
    """A script with its keys and arguments."""

    script: Script
    keys: Sequence[str]
    arguments: Sequence[Argument]

    @property
    def command(self) -> tuple[Argument, ...]:
        """The command for a server that has cached the script."""
        return ("EVALSHA", self.script.digest, len(self.keys), *self.keys, *self.arguments)

    async def run(self, client: RedisClient) -> Any:
        """Runs the script in one round trip, or two if the server has not cached it; returns its result."""
        try:
            return await client.execute_command(*self.command)
        except NoScriptError:
            source = self.script.source
            return await client.execute_command("EVAL", source, len(self.keys), *self.keys, *self.arguments)


class Piggyback(NamedTuple):
    """A call that is sent along with another command; ``settle`` gets its result or a StoreError."""

    call: ScriptCall
    settle: Callable[[Any], None]


# Runs each script as if it were alone: the error of a failed one takes the place of its result.
_EACH: Final = """
local results, key, at = {}, 0, 0
for _, run in ipairs(scripts) do
  local keys, arguments = {}, {}
  for each = 1, tonumber(ARGV[at + 1]) do keys[each] = KEYS[key + each] end
  for each = 1, tonumber(ARGV[at + 2]) do arguments[each] = ARGV[at + 2 + each] end
  key, at = key + #keys, at + 2 + #arguments
  local done, result = pcall(run, keys, arguments)
  if not done and type(result) ~= 'table' then result = redis.error_reply(result) end
  results[#results + 1] = result
end
return results
"""


@cache
def _in_one(scripts: tuple[Script, ...]) -> Script:
    """Returns one script that runs several, one after the other."""
    functions = ",\n".join(f"function(KEYS, ARGV)\n{script.source}\nend" for script in scripts)
    return Script(f"local scripts = {{{functions}}}\n{_EACH}")


async def run_scripts(client: RedisClient, *calls: ScriptCall) -> list[Any]:
    """Runs calls, the last one last; returns their results, with errors of the server among them."""

    async def run(call: ScriptCall) -> Any:
        try:
            return await call.run(client)
        except (RedisError, RedisClusterException) as error:
            return error

    *others, last = calls
    return [*await asyncio.gather(*map(run, others)), await run(last)]


def in_one(calls: Sequence[ScriptCall]) -> ScriptCall:
    """Combines calls into one, which returns a list of their results, with errors among them."""
    keys: list[str] = []
    arguments: list[Argument] = []
    for call in calls:
        keys += call.keys
        arguments += len(call.keys), len(call.arguments), *call.arguments
    return _in_one(tuple(call.script for call in calls))(keys, *arguments)


class Link:
    """Runs commands, each in a task that continues when its caller is cancelled, to read its reply.

    A caller waits until its deadline. A command that takes longer has a grace period, in which a slow
    connection can still be opened; then it is cancelled, and its connection closed.

    After a server was lost or slow, later commands use a new client, with new connections and addresses. A
    Cluster's client does this itself, node by node.
    """

    def __init__(self, place: RedisAddress, deadline: float) -> None:
        self._make = client_factory(place, deadline)
        self._deadline = deadline
        self._client = self._make()
        self._in_flight: dict[asyncio.Future[Any], RedisClient] = {}
        self._closing = Tasks()
        self._closed = False

    async def run(
        self, work: Callable[[RedisClient], Coroutine[Any, Any, T]], *, due: float | None = None
    ) -> T:
        """Returns the result of ``work``. Raises StoreError, after one deadline or at ``due``."""
        loop = asyncio.get_running_loop()
        due = due or loop.time() + self._deadline
        if self._closed:
            raise _closed()
        client = self._client
        task = self._tracked(loop.create_task(work(client)))
        try:
            await wait_until_done(task, due - loop.time())
        finally:
            if not task.done():
                grace = loop.call_later(min(_GRACE * self._deadline, _MAX_GRACE), task.cancel)
                task.add_done_callback(lambda _: grace.cancel())
        if not task.done():
            self._check_lost(client, TimeoutError())
            raise self._too_slow()
        if task.cancelled():
            raise _closed()
        error = task.exception()
        if isinstance(error, Exception):
            raise StoreError(describe_error(error)) from None  # its own words may quote what was to be stored
        return task.result()

    async def command(self, *command: Argument) -> Any:
        """Returns the reply to one command, within the same deadline.

        On an open connection, the command is written to the socket directly, without a task or a pool.
        """
        return await self._send(command, lambda client: client.execute_command(*command))

    async def script(self, call: ScriptCall) -> Any:
        """Returns the result of one script, like ``command``."""
        return await self._send(call.command, call.run)

    async def scripts(self, *calls: ScriptCall) -> list[Any]:
        """Returns results like ``run_scripts``; of several scripts, with a StoreError for each failed one."""
        if len(calls) == 1:
            return [await self.script(calls[0])]
        client = self._client
        if isinstance(client, RedisCluster):
            results = await self.run(lambda client: run_scripts(client, *calls))
        else:
            results = await self.script(in_one(calls))
        for place, error in enumerate(results):
            if isinstance(error, Exception):
                self._check_lost(client, error)
                results[place] = StoreError(describe_error(error))
        return results

    async def _send(
        self, command: tuple[Argument, ...], work: Callable[[RedisClient], Coroutine[Any, Any, Any]]
    ) -> Any:
        """Sends a command on the open connection; runs ``work`` without one, and to repeat the command."""
        client = self._client
        if self._closed or (shared := client.shared(command)) is None:
            return await self.run(work)
        not_carried_out: tuple[type[Exception], ...] = (NoScriptError, *client.redirects)
        reply = self._tracked(shared.send(command))
        loop = asyncio.get_running_loop()
        due = loop.time() + self._deadline
        timer = loop.call_at(due, _time_out, reply, _ROUNDS)
        try:
            return await reply
        except not_carried_out:
            return await self.run(work, due=due)
        except RedisError as error:
            raise StoreError(describe_error(error)) from None  # its own words may quote what was to be stored
        except TimeoutError:
            raise self._too_slow() from None
        finally:
            timer.cancel()
            # The reply has its error, whose traceback has this frame: a cycle, with all that was sent.
            del reply

    async def aclose(self) -> None:
        """Waits one deadline for commands in flight, then closes all connections."""
        self._closed = True
        self._closing.start(self._close(self._client))
        if self._closing:
            await asyncio.wait(self._closing, timeout=self._deadline)
        for pending in self._in_flight:
            if isinstance(pending, asyncio.Task):
                pending.cancel()
            else:
                settle(pending, _closed())
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _too_slow(self) -> StoreError:
        return StoreError(f"Redis took longer than {self._deadline * 1000:.0f} ms")

    def _tracked(self, pending: Pending) -> Pending:
        self._in_flight[pending] = self._client
        pending.add_done_callback(self._on_done)
        return pending

    def _on_done(self, pending: asyncio.Future[Any]) -> None:
        client = self._in_flight.pop(pending)
        error = None if pending.cancelled() else pending.exception()
        if isinstance(error, Exception):
            self._check_lost(client, error)
        # The frames of the loop's connect method refer to its errors. Without this, each attempt during an
        # outage would leave a client for the garbage collector.
        while error is not None:
            error.__traceback__ = None
            error = error.__cause__ or error.__context__

    def _check_lost(self, client: RedisClient, error: Exception) -> None:
        """Replaces the client after some errors; the old one is closed after its last command."""
        if client is self._client and not self._closed and client.is_lost(error):
            self._client = self._make()
            self._closing.start(self._close(client))

    async def _close(self, client: RedisClient) -> None:
        last = [pending for pending, used in self._in_flight.items() if used is client]
        if last:
            await asyncio.wait(last)
        # Errors of closing a dead connection are useless.
        with contextlib.suppress(Exception):
            await client.aclose()


def _time_out(reply: asyncio.Future[Any], rounds: int) -> None:
    """Fails a reply with TimeoutError after some rounds in which it may be read, as ``wait_until_done``."""
    if reply.done():
        return
    if rounds:
        asyncio.get_running_loop().call_soon(_time_out, reply, rounds - 1)
    else:
        reply.set_exception(TimeoutError())


def _closed() -> StoreError:
    return StoreError("the store is closed")
