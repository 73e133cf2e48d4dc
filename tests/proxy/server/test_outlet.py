"""The short way to a client: it is told of as soon as it leaves, and small answers go out in one piece."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from proxy.http import body
from proxy.http.reply import OUTLET, Outlet, Reply
from proxy.server.protocol import Protocol

MUCH = b"x" * 100_000
HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(MUCH)


class Wire(asyncio.Transport):
    """A socket that knows whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.read = True
        self.written: list[bytes] = []
        self.closed_after: int | None = None

    def write(self, data: bytes) -> None:
        self.written.append(bytes(data))

    def pause_reading(self) -> None:
        self.read = False

    def resume_reading(self) -> None:
        self.read = True

    def is_closing(self) -> bool:
        return self.closed_after is not None

    def close(self) -> None:
        self.closed_after = len(self.written)


class Turn:
    """An application that watches its client once it has the whole request."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.asked = asyncio.Event()
        self.watched = asyncio.Event()
        self.outlet: Outlet | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.outlet = scope["extensions"].pop(OUTLET)
        self.asked.set()
        await body.read_body(receive, {}, body.BodyLimit(len(MUCH)))
        stop = self.outlet.on_disconnect(self.left.set)
        self.watched.set()
        await self.left.wait()
        stop()


async def called(turn: Turn) -> tuple[Protocol, Wire]:
    wire, protocol = Wire(), Protocol(Config(turn, log_config=None), ServerState(), {})
    protocol.connection_made(wire)
    protocol.data_received(HEAD)
    await turn.asked.wait()
    await asyncio.sleep(0)
    return protocol, wire


def test_a_client_whose_body_is_more_than_is_read_ahead_is_listened_to_again():
    async def check() -> None:
        turn = Turn()
        protocol, wire = await called(turn)
        protocol.data_received(MUCH)
        assert not wire.read
        await turn.watched.wait()
        assert wire.read
        protocol.connection_lost(None)
        assert turn.left.is_set()

    asyncio.run(asyncio.wait_for(check(), 10))


def test_who_has_left_already_is_told_of_to_whoever_begins_to_watch():
    async def check() -> None:
        turn = Turn()
        protocol, _ = await called(turn)
        protocol.connection_lost(None)
        gone: list[bool] = []
        assert turn.outlet is not None
        turn.outlet.on_disconnect(lambda: gone.append(True))
        assert gone == [True]

    asyncio.run(asyncio.wait_for(check(), 10))


def test_who_has_stopped_watching_is_told_nothing():
    async def check() -> None:
        turn = Turn()
        protocol, _ = await called(turn)
        gone: list[bool] = []
        assert turn.outlet is not None
        turn.outlet.on_disconnect(lambda: gone.append(True))()
        protocol.connection_lost(None)
        assert gone == []

    asyncio.run(asyncio.wait_for(check(), 10))


async def written(
    answer: Callable[[Reply], Awaitable[None]], head: str = "", *, stalled: bool = False
) -> Wire:
    """The wire of a client once its request was answered; ``stalled`` does not read at first."""
    wire, done = Wire(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(Reply(send, (), None, scope["extensions"].pop(OUTLET)))
        done.set()

    protocol = Protocol(Config(app, log_config=None), ServerState(), {})
    protocol.connection_made(wire)
    if stalled:
        protocol.pause_writing()
    protocol.data_received(f"GET / HTTP/1.1\r\nhost: x\r\n{head}\r\n".encode())
    if stalled:
        for _ in range(10):
            await asyncio.sleep(0)
        assert not wire.written
        protocol.resume_writing()
    await done.wait()
    protocol.connection_lost(None)
    return wire


async def whole(reply: Reply) -> None:
    await reply.send_whole(200, [(b"x-a", b"1")], b"hello")


async def streamed(reply: Reply) -> None:
    await reply.begin(200, [(b"x-a", b"1")], b"hel")
    await reply.write(b"lo")
    await reply.end(b"!")


@pytest.mark.parametrize("stalled", [False, True])
def test_a_small_answer_goes_out_with_its_head(stalled: bool) -> None:
    wire = asyncio.run(asyncio.wait_for(written(whole, stalled=stalled), 10))
    assert len(wire.written) == (2 if stalled else 1)
    assert b"".join(wire.written).startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"".join(wire.written).endswith(b"x-a: 1\r\ncontent-length: 5\r\n\r\nhello")


def test_a_streams_first_chunk_goes_out_with_its_head_and_the_last_one_with_the_end() -> None:
    wire = asyncio.run(asyncio.wait_for(written(streamed), 10))
    first, second, third = wire.written
    assert first.startswith(b"HTTP/1.1 200 OK\r\n") and first.endswith(b"\r\n\r\n3\r\nhel\r\n")
    assert (second, third) == (b"2\r\nlo\r\n", b"1\r\n!\r\n0\r\n\r\n")


def test_an_answer_is_written_before_its_connection_closes() -> None:
    wire = asyncio.run(asyncio.wait_for(written(whole, "connection: close\r\n"), 10))
    assert wire.closed_after == 1 and wire.written[0].endswith(b"hello")


def test_a_large_answer_is_not_copied_behind_its_head() -> None:
    large = b"x" * 100_000
    wire = asyncio.run(asyncio.wait_for(written(lambda reply: reply.send_whole(200, [], large)), 10))
    assert wire.written[1:] == [large]
