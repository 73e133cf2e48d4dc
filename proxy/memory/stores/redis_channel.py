"""Messages between the servers of one Redis: by its pub/sub, which is sharded on a Cluster that can do so."""

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

from proxy.memory.stores.channel import REJOINING, Channel, ClockReading, Receive, compare_clocks
from proxy.memory.stores.redis_address import Address
from proxy.memory.stores.redis_client import RedisClient, client_factory
from proxy.memory.stores.redis_link import Link, Script

_CHANNELS: Final = 16
"""Over how many channels topics are spread, so that a Cluster's nodes share the work."""
_LARGEST: Final = 100_000
_CONNECT_SECONDS: Final = 2.0
_CHECK_EVERY: Final = 2.0
"""Seconds between two checks of connections: to more servers there are more of them, and not more checks."""
_MICROSECONDS: Final = 1e6
_SUBSCRIBED: Final = (b"subscribe", b"ssubscribe")

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
        self._link = Link(place, deadline)
        self._make = client_factory(place, _CONNECT_SECONDS)
        # The sign in front is no session's, and of no other key's.
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
        """Receives; connections of which one is lost are made again."""
        failures = 0
        while True:
            with suppress(RedisError, RedisClusterException, OSError, TimeoutError):
                async with AsyncExitStack() as opened:
                    connections = await self._listen(opened)
                    failures = 0
                    joined()
                    # Ends where one is lost, and all are closed then.
                    pause = _CHECK_EVERY * len(connections)
                    await asyncio.gather(*(_pass_on(each, receive, pause) for each in connections))
            failures += 1
            await asyncio.sleep(REJOINING.pause(failures))

    async def read_clock(self) -> ClockReading:
        """Compares with the clock of the server that has the first channel: a Cluster's may differ."""

        async def read() -> float:
            seconds, microseconds = await self._link.script(TIME(self._channels[:1]))
            return int(seconds) + int(microseconds) / _MICROSECONDS

        return await compare_clocks(read)

    async def aclose(self) -> None:
        """Closes what messages are sent over."""
        await self._link.aclose()

    async def _listen(self, opened: AsyncExitStack) -> list[AbstractConnection]:
        """Listens to all channels, over one connection to each server that has any of them."""
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
    """Whether a server of a Cluster is new enough for sharded channels."""
    try:
        await _subscribe(connection, "SSUBSCRIBE", channels[:1])
    except ResponseError as error:
        if str(error).startswith("unknown command"):
            return False
        raise
    return True


async def _subscribe(connection: AbstractConnection, command: str, channels: list[str]) -> None:
    """Returns once messages arrive."""
    for channel in channels:  # each may be of another slot
        await connection.send_command(command, channel)
    missing = len(channels)
    while missing:
        kind, *_ = await connection.read_response()
        missing -= kind in _SUBSCRIBED


async def _pass_on(connection: AbstractConnection, receive: Receive, pause: float) -> None:
    """Passes messages on until the connection is lost, or is silent for so many seconds after a question."""
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
                with suppress(ValueError):  # something else has published here
                    receive(int(at) / _MICROSECONDS, data)
            case [b"sunsubscribe" | b"unsubscribe", *_]:
                raise Lost("the channel's slot has moved to another node")
        is_asked = reply is None
