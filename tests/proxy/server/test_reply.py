"""A reply on its connection: it ends when its client leaves, and small answers go out in one piece."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from proxy.http.reply import Reply
from proxy.http.request import BodyLimit, Request, read_body
from proxy.observe.observation import Observation
from proxy.server.protocol import Protocol
from tests.reading_client import Wire

MUCH = b"x" * 100_000
HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(MUCH)


class Turn:
    """An application that runs until its client leaves, once it has the whole request."""

    small_body = 0

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.running = asyncio.Event()
        self.left = asyncio.Event()

    async def answer(self, request: Request) -> None:
        self.begun.set()
        await read_body(request.receive, {}, BodyLimit(len(MUCH)))
        request.reply.watcher = request.task
        self.running.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()


async def called(turn: Turn) -> tuple[Protocol, Wire]:
    wire, protocol = Wire(), Protocol(Config(turn), ServerState(), {})  # type: ignore[arg-type]
    protocol.connection_made(wire)
    protocol.data_received(HEAD)
    await turn.begun.wait()
    await asyncio.sleep(0)
    return protocol, wire


def test_a_client_whose_body_is_more_than_is_read_ahead_is_listened_to_again():
    async def check() -> None:
        turn = Turn()
        protocol, wire = await called(turn)
        protocol.data_received(MUCH)
        assert not wire.read
        await turn.running.wait()
        assert wire.read
        protocol.connection_lost(None)
        await turn.left.wait()

    asyncio.run(asyncio.wait_for(check(), 10))


async def written(
    answer: Callable[[Reply], Awaitable[None]], head: str = "", *, stalled: bool = False
) -> Wire:
    """The wire of a client once its request was answered; ``stalled`` does not read at first."""
    wire, done = Wire(), asyncio.Event()

    class App:
        small_body = 0

        async def answer(self, request: Request) -> None:
            request.reply.observation = Observation()
            await answer(request.reply)
            done.set()

    protocol = Protocol(Config(App()), ServerState(), {})  # type: ignore[arg-type]
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
    await reply.begin(200, [(b"x-a", b"1")], b"hello", ends=True)


async def streamed(reply: Reply) -> None:
    await reply.begin(200, [(b"x-a", b"1")], b"hel")
    await reply.write(b"lo")
    await reply.write(b"!", ends=True)


@pytest.mark.parametrize("stalled", [False, True])
def test_a_small_answer_goes_out_with_its_head(stalled: bool) -> None:
    wire = asyncio.run(asyncio.wait_for(written(whole, stalled=stalled), 10))
    (whole_answer,) = wire.written
    assert whole_answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert whole_answer.endswith(b"x-a: 1\r\ncontent-length: 5\r\n\r\nhello")


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
    wire = asyncio.run(asyncio.wait_for(written(lambda reply: reply.begin(200, [], large, ends=True)), 10))
    assert wire.written[1:] == [large]
