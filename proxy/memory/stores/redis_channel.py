"""Messages between the servers of one Redis: by its pub/sub, which is sharded on a Cluster that can do so."""

import asyncio
import zlib
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from itertools import groupby
from typing import Any, Final, cast

import hiredis
from redis.asyncio import RedisCluster
from redis.asyncio.connection import AbstractConnection, DefaultParser
from redis.exceptions import InvalidResponse, RedisClusterException, RedisError, ResponseError

from proxy.memory.stores.channel import Channel, ClockReading, Receive, compare_clocks
from proxy.memory.stores.redis import KeyPair
from proxy.memory.stores.redis_address import Address
from proxy.memory.stores.redis_client import Client, client_factory
from proxy.memory.stores.redis_link import Link, Script

_CHANNELS: Final = 16
"""Over how many channels topics are spread, so that a Cluster's nodes share the work."""
_LARGEST: Final = 100_000
_CONNECT_SECONDS: Final = 2.0
_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_GROWTH: Final = 0.01
_CHECK_EVERY: Final = 2.0
"""Seconds between two checks of connections: to more servers there are more of them, and not more checks."""
_MICROSECONDS: Final = 1e6

# A server before 7 knows no sharded channels; its Cluster sends each message to all nodes.
PUBLISH: Final = Script("""
local time = redis.call('TIME')
local at = string.format('%.0f', time[1] * 1000000 + time[2] - ARGV[2])
redis.call(ARGV[3], KEYS[1], at .. ' ' .. ARGV[1])
return 1
""")

TIME: Final = Script("return redis.call('TIME')")


def open(url: str, *, deadline: float) -> Channel:  # noqa: A001  (a channel is opened, as a store is)
    """The channel of the Redis at an address; nothing is connected yet. Raises ValueError for a wrong one."""
    return RedisChannel(url, deadline=deadline)


class RedisChannel:
    """Channels under the prefix and the database of an address: pub/sub itself knows no databases."""

    largest = _LARGEST

    def __init__(self, url: str, *, deadline: float) -> None:
        place = Address.parse(url)
        self._link = Link(client_factory(place, deadline), deadline=deadline)
        self._make = client_factory(place, _CONNECT_SECONDS)
        # The sign in front is no session's, and of no other key's.
        self._channels = [f"{place.prefix}{{+{number}}}:{place.db}" for number in range(_CHANNELS)]
        self._is_sharded = False

    async def publish(self, topic: str, data: bytes, *, age: float = 0.0) -> None:
        """Sends a message by a script, which adds the server's time."""
        if len(data) > self.largest:
            raise ValueError("the message is too large")
        number = zlib.crc32(topic.encode("utf-8", "surrogatepass")) % _CHANNELS
        keys = KeyPair(self._channels[number], self._channels[number])
        command = "SPUBLISH" if self._is_sharded else "PUBLISH"
        age_in_microseconds = max(0, int(age * _MICROSECONDS))
        await self._link.script(PUBLISH, keys, data, age_in_microseconds, command)

    async def run(self, receive: Receive, joined: Callable[[], None]) -> None:
        """Receives; a connection that is lost is made again, with pauses that grow with the time it takes."""
        clock = asyncio.get_running_loop().time
        since = clock()
        while True:
            with suppress(RedisError, RedisClusterException, OSError, TimeoutError):
                async with AsyncExitStack() as opened:
                    listeners = await self._listen(opened, receive)
                    joined()
                    await _until_one_is_lost(listeners)
                    since = clock()
            await asyncio.sleep(min(_PAUSE + _GROWTH * (clock() - since), _LONGEST_PAUSE))

    async def read_clock(self) -> ClockReading:
        """Compares with the clock of the server that has the first channel: a Cluster's may differ."""
        keys = KeyPair(self._channels[0], self._channels[0])

        async def read() -> float:
            seconds, microseconds = await self._link.script(TIME, keys)
            return int(seconds) + int(microseconds) / _MICROSECONDS

        return await compare_clocks(read)

    async def aclose(self) -> None:
        """Closes what messages are sent over."""
        await self._link.aclose()

    async def _listen(self, opened: AsyncExitStack, receive: Receive) -> list["_Listener"]:
        """Listens to all channels, over one connection to each server that has any of them."""
        client = self._make()
        opened.push_async_callback(client.aclose)
        async with asyncio.timeout(_CONNECT_SECONDS):
            if isinstance(client, RedisCluster):
                await client.initialize()
            listeners = []
            for connection, channels in self._connections(client):
                opened.push_async_callback(connection.disconnect, nowait=True)
                await connection.connect()  # type: ignore[no-untyped-call]
                listeners.append(_Listener(connection, receive))
                await self._subscribe(listeners[-1], channels, is_cluster=isinstance(client, RedisCluster))
        return listeners

    def _connections(self, client: Client) -> list[tuple[AbstractConnection, list[str]]]:
        if not isinstance(client, RedisCluster):
            return [(client.make_connection(), self._channels)]
        nodes = client.nodes_manager
        owners = [(nodes.get_node_from_slot(client.keyslot(name)), name) for name in self._channels]
        owners.sort(key=lambda owner: str(owner[0].name))
        return [
            (node.acquire_connection(), [name for _, name in group])
            for node, group in groupby(owners, key=lambda owner: owner[0])
        ]

    async def _subscribe(self, listener: "_Listener", channels: list[str], *, is_cluster: bool) -> None:
        self._is_sharded = False
        if is_cluster:
            with suppress(_UnknownCommand):
                await listener.subscribe("SSUBSCRIBE", channels[:1])
                self._is_sharded = True
                await listener.subscribe("SSUBSCRIBE", channels)
                return
        await listener.subscribe("SUBSCRIBE", channels)


class _UnknownCommand(ResponseError):
    """The server is older than a command."""


class _Listener(asyncio.Protocol):
    """A connection that redis-py has made and logged in, and over which messages arrive."""

    def __init__(self, connection: AbstractConnection, receive: Receive) -> None:
        self._receive = receive
        self._reader = hiredis.Reader(replyError=DefaultParser.parse_error, protocolError=InvalidResponse)
        self._transport = cast("asyncio.StreamWriter", connection._writer).transport  # noqa: SLF001 - as SharedConnection
        self._transport.set_protocol(self)
        self._missing = 0
        self._subscribed: asyncio.Future[None] | None = None
        self.is_alive = True
        self.lost = asyncio.get_running_loop().create_future()

    async def subscribe(self, command: str, channels: list[str]) -> None:
        """Returns once messages arrive; raises what the server answers."""
        self._missing = len(channels)
        self._subscribed = asyncio.get_running_loop().create_future()
        for channel in channels:  # each may be of another slot
            self.send(command, channel)
        await self._subscribed

    def send(self, *command: str) -> None:
        """Sends a command."""
        self._transport.write(hiredis.pack_command(command))  # type: ignore[arg-type] # its stub means one

    def end(self) -> None:
        """Ends the connection."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Passes the messages on that are complete."""
        self.is_alive = True
        self._reader.feed(data)
        try:
            while (value := self._reader.gets()) is not False:
                self._on_reply(value)
        except InvalidResponse:
            self.end()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - whatever it was
        """Says so to those that wait."""
        if not self.lost.done():
            self.lost.set_result(None)
        self._fail(ConnectionResetError())

    def _on_reply(self, reply: Any) -> None:
        if isinstance(reply, Exception):
            unknown = str(reply).startswith("unknown command")
            self._fail(_UnknownCommand() if unknown else reply)
            if not unknown:
                self.end()
            return
        match reply:
            case [b"message" | b"smessage", _, bytes(message)]:
                at, _, data = message.partition(b" ")
                with suppress(ValueError):  # something else has published here
                    self._receive(int(at) / _MICROSECONDS, data)
            case [b"subscribe" | b"ssubscribe", *_]:
                self._missing -= 1
                if not self._missing and self._subscribed and not self._subscribed.done():
                    self._subscribed.set_result(None)
            case [b"sunsubscribe" | b"unsubscribe", *_]:  # the channel's slot has moved to another node
                self.end()

    def _fail(self, error: Exception) -> None:
        if self._subscribed and not self._subscribed.done():
            self._subscribed.set_exception(error)


async def _until_one_is_lost(listeners: list[_Listener]) -> None:
    """Returns once a connection has ended, or a server has answered nothing since the last check."""
    while True:
        for listener in listeners:
            if not listener.is_alive:
                return
            listener.is_alive = False
            listener.send("PING")
        lost = [each.lost for each in listeners]
        pause = _CHECK_EVERY * len(listeners)
        done, _ = await asyncio.wait(lost, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        if done:
            return
