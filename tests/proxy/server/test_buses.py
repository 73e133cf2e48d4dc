"""What every bus does, between the processes of one port and between the hosts of one store."""

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest
from redis.asyncio import Redis

from filters.message import Message as Line
from proxy.errors import Superseded
from proxy.http.reply import Client, Reply
from proxy.memory.stores.drivers import channel_address
from proxy.memory.stores.store import Key
from proxy.observe.observation import Observation
from proxy.server.bus import LARGEST, Bus, BusMessage, ErasureMessage, ReloadMessage, WatchingMessage, inboxes
from proxy.server.hosts import HostBus
from proxy.turn.active import ActiveTurn, ActiveTurns, TurnClaim
from tests.peers import redis_server
from tests.peers.postgres_server import PostgresServer
from tests.peers.redis_server import RedisServer
from tests.peers.transaction_pooler import TransactionPooler

pytestmark = pytest.mark.anyio
KEY = "a2V5a2V5a2V5a2V5a2V5a2V5a2V5a2V5a2V5a2V5a2U="
UNTOLD: dict[str, Any] = {
    "longer than a message": "s" * 10 * LARGEST,
    "a number too large": 10**40,
    "half a character": "\ud800",
}


class AnyBus(Protocol):
    """What all buses can."""

    def send(self, message: BusMessage) -> None: ...
    def send_reliably(self, message: BusMessage) -> None: ...
    def receive(self, callback: Callable[[BusMessage], None]) -> None: ...


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with redis_server.single(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with redis_server.cluster(tmp_path_factory.mktemp("cluster")) as servers:
        yield servers


async def url_of(request: pytest.FixtureRequest) -> str:
    if request.param == "postgresql":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        return postgres.url(await postgres.new_schema())
    prefix = uuid.uuid4().hex
    if request.param == "redis+cluster":
        return f"redis+cluster://127.0.0.1:{request.getfixturevalue('nodes')[0].port}?prefix={prefix}:"
    return f"{request.getfixturevalue('redis').url}?prefix={prefix}:"


@pytest.fixture(params=["processes", "redis", "redis, encrypted", "redis+cluster", "postgresql"])
async def buses(request: pytest.FixtureRequest) -> AsyncIterator[list[AnyBus]]:
    """Three members, which hear each other."""
    if request.param == "processes":
        made = inboxes(3)
        yield [Bus(made, own) for own in range(3)]
        for end in itertools.chain(*made):
            end.close()
        return
    address = channel_address(
        await url_of(request), [KEY] if "encrypted" in request.param else [], deadline=1.0
    )
    assert address
    hosts = [HostBus(address, bytes([number]), ActiveTurns()) for number in range(3)]
    yield list(hosts)
    for host in hosts:
        await host.aclose()


async def listening(buses: list[AnyBus]) -> list[list[BusMessage]]:
    """What each hears from now on; returns once all hear each other."""
    heard: list[list[BusMessage]] = [[] for _ in buses]
    for bus, messages in zip(buses, heard, strict=True):
        bus.receive(messages.append)
    async with asyncio.timeout(10):
        while not all(heard):
            for bus in buses:
                bus.send(WatchingMessage())
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)
    for messages in heard:
        messages.clear()
    return heard


async def arrive(heard: list[BusMessage], count: int) -> list[BusMessage]:
    async with asyncio.timeout(10):
        while len(heard) < count:  # noqa: ASYNC110 - they come when they come
            await asyncio.sleep(0.005)
    return heard


async def test_with_encryption_no_session_is_named_between_hosts(redis: RedisServer) -> None:
    address = channel_address(redis.url, [KEY], deadline=1.0)
    assert address
    turns = ActiveTurns()
    host = HostBus(address, b"1", turns)
    turns.publish = host.announce
    sent: list[bytes] = []
    client = Redis.from_url(redis.url)
    try:
        pubsub = client.pubsub()
        await pubsub.psubscribe("*")
        host.receive(lambda _: None)
        slot = Key("acme", "call-unmistakable"), "default"
        with ActiveTurn(turns, slot, TurnClaim(1, ()), Reply(Client(), Observation())) as turn:
            async with asyncio.timeout(10):
                while turn.shared_order is None:
                    host.announce(slot, turn)
                    await asyncio.sleep(0.05)
        while message := await pubsub.get_message(timeout=0.1):
            if message["type"] == "pmessage":
                sent.append(message["data"])
    finally:
        await host.aclose()
        await client.aclose()
    assert any(b"default" in one for one in sent)
    assert not any(b"unmistakable" in one for one in sent)


async def test_a_turn_that_is_read_behind_the_newer_one_at_another_host_gives_way(redis: RedisServer) -> None:
    address = channel_address(f"{redis.url}?prefix=behind:", [], deadline=1.0)
    assert address
    slot, active = (Key("acme", "call"), "default"), [ActiveTurns(), ActiveTurns()]
    hosts = [HostBus(address, bytes([number]), turns) for number, turns in enumerate(active)]
    await listening(list(hosts))
    for turns, host in zip(active, hosts, strict=True):
        turns.publish = host.announce
    announced = asyncio.Event()
    active[1].has = lambda _: bool(announced.set())  # type: ignore[method-assign] - it has none then
    newer = ActiveTurn(
        active[0],
        slot,
        TurnClaim(1, [Line(role="user", content="Tell me")]),
        Reply(Client(), Observation()),
    )
    with newer:
        async with asyncio.timeout(10):
            await announced.wait()
            while newer.shared_order is None:  # noqa: ASYNC110 - it comes when it comes
                await asyncio.sleep(0.005)
        del active[1].has
        older = ActiveTurn(
            active[1],
            slot,
            TurnClaim(1, [Line(role="user", content="Tell")]),
            Reply(Client(), Observation()),
        )
        older.entered_at = newer.entered_at + 0.01
        with pytest.raises(Superseded):
            async with asyncio.timeout(10):
                with older:
                    await asyncio.Event().wait()
    for host in hosts:
        await host.aclose()


async def test_a_message_reaches_all_others_and_not_its_sender(buses: list[AnyBus]) -> None:
    heard = await listening(buses)
    note = ErasureMessage("t", "a session", "ann")
    buses[0].send(note)
    buses[1].send(ReloadMessage())
    assert await arrive(heard[2], 2) in ([note, ReloadMessage()], [ReloadMessage(), note])
    assert await arrive(heard[0], 1) == [ReloadMessage()]
    assert await arrive(heard[1], 1) == [note]


async def test_a_message_that_must_arrive_arrives_once(buses: list[AnyBus]) -> None:
    heard = await listening(buses)
    note = ErasureMessage("t", None, "ann")
    buses[0].send_reliably(note)
    buses[0].send(ReloadMessage())
    assert note in await arrive(heard[1], 2)
    assert (heard[1].count(note), heard[0]) == (1, [])


@pytest.mark.parametrize("what", UNTOLD)
async def test_what_fits_no_message_is_lost_and_others_are_not(buses: list[AnyBus], what: str) -> None:
    heard = await listening(buses)
    buses[0].send(ErasureMessage("t", UNTOLD[what], None))
    buses[0].send(ReloadMessage())
    assert await arrive(heard[1], 1) == [ReloadMessage()]


async def test_what_must_arrive_arrives_once_the_server_is_back(tmp_path: Path) -> None:
    with ExitStack() as started:
        server = started.enter_context(redis_server.single(tmp_path))
        address = channel_address(server.url, [], deadline=0.5)
        assert address
        hosts: list[HostBus] = [HostBus(address, bytes([number]), ActiveTurns()) for number in range(2)]
        heard = await listening(list(hosts))
        await asyncio.to_thread(server.kill)
        note = ErasureMessage("t", None, "ann")
        hosts[0].send_reliably(note)
        await asyncio.to_thread(server.start)
        assert await arrive(heard[1], 1) == [note]
        for host in hosts:
            await host.aclose()


async def test_behind_a_pooler_of_transactions_it_is_said_that_hosts_are_alone(
    postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    schema = await postgres.new_schema()
    with TransactionPooler(postgres.socket) as pooler:
        url = f"postgresql://postgres@127.0.0.1:{pooler.port}/postgres?search_path={schema}"
        address = channel_address(url, [], deadline=1.0)
        assert address
        host = HostBus(address, b"1", ActiveTurns())
        host.receive(lambda _: None)
        async with asyncio.timeout(20):
            while not caplog.records:  # noqa: ASYNC110 - it says so when it knows
                await asyncio.sleep(0.02)
        await host.aclose()
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "PostgreSQL passes no messages on between hosts, as behind a pooler"
    )


async def test_no_word_is_readable_on_the_wire_where_sessions_are_encrypted(redis: RedisServer) -> None:
    import redis as library  # noqa: PLC0415 - the name is the server's here

    address = channel_address(f"{redis.url}?prefix=sealed:", [KEY], deadline=1.0)
    assert address
    with library.Redis(port=redis.port, protocol=2) as client, client.pubsub() as tapped:
        tapped.psubscribe("sealed:*")
        assert tapped.get_message(timeout=5)
        bus = HostBus(address, b"1", ActiveTurns())
        bus.send(ErasureMessage("t", None, "ann-the-caller"))
        message = await asyncio.to_thread(tapped.get_message, timeout=5)
        assert message
        assert b"\xc1TK1" in message["data"]
        assert b"ann-the-caller" not in message["data"]
        await bus.aclose()


async def test_what_a_host_sends_as_it_ends_arrives(postgres: PostgresServer) -> None:
    address = channel_address(postgres.url(await postgres.new_schema()), [], deadline=1.0)
    assert address
    host, other = (HostBus(address, name, ActiveTurns()) for name in (b"1", b"2"))
    heard = {kind: asyncio.Event() for kind in (ReloadMessage, ErasureMessage)}
    host.receive(lambda _: None)
    other.receive(lambda message: heard[type(message)].set())
    while not heard[ReloadMessage].is_set():
        host.send(ReloadMessage())
        await asyncio.sleep(0.01)
    host.send_reliably(ErasureMessage("acme", "call", None))
    await asyncio.sleep(0)
    await host.aclose()
    async with asyncio.timeout(30):
        await heard[ErasureMessage].wait()
    await other.aclose()
