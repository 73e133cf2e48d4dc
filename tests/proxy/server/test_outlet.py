"""A client who leaves is told of at once, however much it has posted."""

import asyncio
from typing import Any

from uvicorn import Config
from uvicorn.server import ServerState

from proxy.http import body
from proxy.http.reply import OUTLET, Outlet
from proxy.server.protocol import Protocol

MUCH = b"x" * 100_000
HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(MUCH)


class Wire(asyncio.Transport):
    """A socket that knows whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.read = True

    def pause_reading(self) -> None:
        self.read = False

    def resume_reading(self) -> None:
        self.read = True

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass


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
