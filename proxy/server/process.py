"""The process: one listening socket, one loop, and an end that loses nothing."""

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from types import FrameType
from typing import Final

import uvicorn

from proxy.observe.log import logging_to
from proxy.server import listening, signals
from proxy.server.app import App
from proxy.server.protocol import Protocol
from proxy.server.reload import Reload
from proxy.settings.settings import Settings

_FAREWELL = 5.0
Work = Callable[[], Coroutine[None, None, None]]
# Looking at few values at a time keeps nobody waiting; the program itself need not be looked at again.
_COLLECT_AFTER: Final = (2_000, 25, 100)
# Callers wait on the loop: threads that write to memory or to the log give way to it after so many seconds.
_SWITCH_AFTER: Final = 0.0005


def uvicorn_config(app: App, *, host: str = "127.0.0.1", port: int = 0, grace: float = 6.0) -> uvicorn.Config:
    """How uvicorn serves us: its fastest parts, and no log line per request. ``grace`` is in seconds."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=Protocol,
        ws="none",
        lifespan="on",
        access_log=False,
        proxy_headers=False,  # nobody here asks where a client sits
        log_config=None,
        log_level="warning",
        server_header=False,
        backlog=2048,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=grace,  # type: ignore[arg-type]
    )


class Server(uvicorn.Server):
    """A uvicorn server that says when it is going away, and reads its configuration again when told to."""

    def __init__(
        self,
        config: uvicorn.Config,
        app: App,
        reload: Reload,
        beside: Sequence[Work] = (),
    ) -> None:
        super().__init__(config)
        self._app = app
        self._reload = reload
        self._beside = beside
        self._tasks: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to serve, and to listen for SIGHUP."""
        await super().startup(sockets)
        loop = asyncio.get_running_loop()
        if hasattr(signal, "SIGHUP"):
            loop.add_signal_handler(signal.SIGHUP, self._again)
        for work in self._beside:
            self._do(work)
        loop.call_soon(signals.release)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends what runs beside the calls, then serving itself."""
        signals.hold(signals.AGAIN)  # once the loop is closed, nobody else would hear it
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._say_farewell()
        left = self.config.timeout_graceful_shutdown or 0.0
        asyncio.get_running_loop().call_later(left, self._leave_who_does_not_read)
        await super().shutdown(sockets)

    async def _say_farewell(self) -> None:
        # Whoever spreads calls over several servers must be able to read in /readyz that this one ends.
        clock = asyncio.get_running_loop().time
        began, grace = clock(), self.config.timeout_graceful_shutdown or 0.0
        end = began + min(_FAREWELL, grace)
        while self.server_state.tasks and not self.force_exit and clock() < end:  # noqa: ASYNC110 - as uvicorn waits
            await asyncio.sleep(0.05)
        self.config.timeout_graceful_shutdown = max(0.0, grace - (clock() - began))  # type: ignore[assignment]

    def _leave_who_does_not_read(self) -> None:
        # That calls are cancelled could not be told them either: it would wait for them, beyond the end.
        for connection in list(self.server_state.connections):
            if isinstance(connection, Protocol) and connection.flow.write_paused:
                connection.transport.abort()

    def _again(self) -> None:
        if not self.should_exit:
            self._do(self._reload.reload)

    def _do(self, work: Work) -> None:
        task = asyncio.get_running_loop().create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM and SIGINT: /readyz says so while calls last, then no new ones; those in flight may end."""
        self._app.drain()
        super().handle_exit(sig, frame)


def serve(
    app: App,
    reload: Reload,
    settings: Settings,
    sockets: list[socket.socket],
    beside: Sequence[Work] = (),
) -> None:
    """Serves until SIGTERM or SIGINT, and then returns; what is done ``beside`` ends with it."""
    signals.hold()
    # uvicorn raises the signal again when it is done; having ended well is no failure.
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: None)
    tune_interpreter()
    config = uvicorn_config(app, grace=settings.listen.grace)
    with logging_to(sys.stderr, form=settings.log.format, level=settings.log.level):
        Server(config, app, reload, [listening.watch_file_limit, *beside]).run(sockets)


def tune_interpreter() -> None:
    """Makes the process ready to serve; what has been loaded so far stays for good."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
    sys.setswitchinterval(_SWITCH_AFTER)
