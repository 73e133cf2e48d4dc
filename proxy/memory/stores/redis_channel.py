"""Messages between the servers of one Redis, by pub/sub, which is sharded if a Cluster supports that."""

import asyncio
import zlib
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from itertools import groupby
from typing import Final

from redis.asyncio import RedisCluster
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as Lost
from redis.exceptions import RedisClusterException, RedisError, ResponseError

from proxy.memory.stores.addresses import RedisAddress
from proxy.memory.stores.channel import REJOINING, Channel, ClockReading, Receive, compare_clocks
from proxy.memory.stores.redis_client import RedisClient, client_factory
from proxy.memory.stores.redis_link import Link, Script

_CHANNELS: Final = 16
"""The number of channels over which topics are spread, so that a Cluster's nodes share the work."""
_LARGEST: Final = 100_000
_CONNECT_SECONDS: Final = 2.0
_CHECK_EVERY: Final = 2.0
"""Seconds between two checks of connections; with more servers, each connection is checked less often."""
_MICROSECONDS: Final = 1e6
_SUBSCRIBED: Final = (b"subscribe", b"ssubscribe")

# A server before version 7 has no sharded channels; its Cluster sends each message to all nodes.
PUBLISH: Final = Script("""
local time = redis.call('TIME')
local at = string.format('%.0f', time[1] * 1000000 + time[2] - ARGV[2])
redis.call(ARGV[3], KEYS[1], at .. ' ' .. ARGV[1])
return 1
""")

TIME: Final = Script("return redis.call('TIME')")


def open(url: str, *, deadline: float) -> Channel:  # noqa: A001  (a channel is opened, as a store is)
    """Returns the channel of the Redis at an address, not connected yet; raises ValueError if invalid."""
    return RedisChannel(url, deadline=deadline)


class RedisChannel:
    """Channels named by an address's prefix and database, because pub/sub itself ignores databases."""

    largest = _LARGEST

    def __init__(self, url: str, *, deadline: float) -> None:
        place = RedisAddress.parse(url)
        self._link = Link(place, deadline)
        self._make = client_factory(place, _CONNECT_SECONDS)
        # No session's tag begins with a plus sign, and no other key has the same name.
        self._channels = [f"{place.prefix}{{+{number}}}:{place.db}" for number in range(_CHANNELS)]
        self._is_sharded = False

    async def publish(self, topic: str, data: bytes, *, age: float = 0.0) -> None:
        """Sends a message by a script, which adds the server's time."""
        if len(data) > self.largest:
            raise ValueError("the message is too large")
        number = zlib.crc32(topic.encode("utf-8", "surrogatepass")) % _CHANNELS
        command = "SPUBLISH" if self._is_sharded else "PUBLISH"
        age_in_microseconds = max(0, int(age * _MICROSECONDS))
        await self._link.script(PUBLISH((self._channels[number],), data, age_in_microseconds, command))

    async def run(self, receive: Receive, joined: Callable[[], None]) -> None:
        """Receives messages until it is cancelled; if one connection is lost, all are opened again."""
        failures = 0
        while True:
            with suppress(RedisError, RedisClusterException, OSError, TimeoutError):
                async with AsyncExitStack() as opened:
                    connections = await self._listen(opened)
                    failures = 0
                    joined()
                    # Ends if one connection is lost; then all are closed.
                    pause = _CHECK_EVERY * len(connections)
                    await asyncio.gather(*(_pass_on(each, receive, pause) for each in connections))
            failures += 1
            await asyncio.sleep(REJOINING.pause(failures))

    async def read_clock(self) -> ClockReading:
        """Compares with the clock of the server with the first channel, as a Cluster's clocks may differ."""

        async def read() -> float:
            seconds, microseconds = await self._link.script(TIME(self._channels[:1]))
            return int(seconds) + int(microseconds) / _MICROSECONDS

        return await compare_clocks(read)

    async def aclose(self) -> None:
        """Closes the connections over which messages are sent."""
        await self._link.aclose()

    async def _listen(self, opened: AsyncExitStack) -> list[AbstractConnection]:
        """Subscribes to all channels; returns one connection for each server that has any of them."""
        client, listening = self._make(), []
        is_cluster = isinstance(client, RedisCluster)
        opened.push_async_callback(client.aclose)
        async with asyncio.timeout(_CONNECT_SECONDS):
            if isinstance(client, RedisCluster):
                await client.initialize()
            for connection, channels in self._connections(client):
                opened.push_async_callback(connection.disconnect, nowait=True)
                await connection.connect()  # type: ignore[no-untyped-call]
                self._is_sharded = is_cluster and await _has_shards(connection, channels)
                await _subscribe(connection, "SSUBSCRIBE" if self._is_sharded else "SUBSCRIBE", channels)
                listening.append(connection)
        return listening

    def _connections(self, client: RedisClient) -> list[tuple[AbstractConnection, list[str]]]:
        if not isinstance(client, RedisCluster):
            return [(client.make_connection(), self._channels)]
        nodes = client.nodes_manager
        owners = [(nodes.get_node_from_slot(client.keyslot(name)), name) for name in self._channels]
        owners.sort(key=lambda owner: str(owner[0].name))
        return [
            (node.acquire_connection(), [name for _, name in group])
            for node, group in groupby(owners, key=lambda owner: owner[0])
        ]


async def _has_shards(connection: AbstractConnection, channels: list[str]) -> bool:
    """Whether a server of a Cluster supports sharded channels."""
    try:
        await _subscribe(connection, "SSUBSCRIBE", channels[:1])
    except ResponseError as error:
        if str(error).startswith("unknown command"):
            return False
        raise
    return True


async def _subscribe(connection: AbstractConnection, command: str, channels: list[str]) -> None:
    """Subscribes to channels; returns once messages arrive."""
    for channel in channels:  # each may be in another slot
        await connection.send_command(command, channel)
    missing = len(channels)
    while missing:
        kind, *_ = await connection.read_response()
        missing -= kind in _SUBSCRIBED


async def _pass_on(connection: AbstractConnection, receive: Receive, pause: float) -> None:
    """Passes messages on; raises if the connection is lost, or silent for ``pause`` seconds after a ping."""
    is_asked = False
    while True:
        reply = await connection.read_response(timeout=pause)
        match reply:
            case None if is_asked:
                raise Lost("the server has not answered")
            case None:
                await connection.send_command("PING")
            case [b"message" | b"smessage", _, bytes(message)]:
                at, _, data = message.partition(b" ")
                with suppress(ValueError):  # other programs may publish here
                    receive(int(at) / _MICROSECONDS, data)
            case [b"sunsubscribe" | b"unsubscribe", *_]:
                raise Lost("the channel's slot has moved to another node")
        is_asked = reply is None
