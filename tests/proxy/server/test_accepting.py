"""Clients that connect while the event loop is busy."""

import asyncio
import os
import socket
from contextlib import ExitStack

import uvloop

from proxy.server.app import build_app
from proxy.server.process import Server, listen, uvicorn_config
from proxy.server.reload import Reload
from proxy.settings.load import load
from tests.conftest import AGORA

CALLERS, ROUNDS = 30, 6


def test_many_who_wait_are_let_in_within_a_few_rounds_of_the_loop():
    async def scene() -> int:
        settings = load(AGORA, {"MEMORY_URL": "memory:"})
        app = build_app(settings, {})
        config = uvicorn_config(app)
        config.load()
        server = Server(config, app, Reload(app, settings, AGORA, os.environ), drain=0.0)
        server.lifespan = config.lifespan_class(config)
        sockets = listen("127.0.0.1", 0)
        await server.startup(sockets)
        with ExitStack() as stack:
            for _ in range(CALLERS):
                stack.enter_context(socket.create_connection(sockets[0].getsockname()))
            for _ in range(ROUNDS):
                await asyncio.sleep(0)
            let_in = len(server.server_state.connections)
        await server.shutdown(sockets)
        return let_in

    assert uvloop.run(scene()) == CALLERS
