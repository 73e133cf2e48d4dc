"""One server process: its sockets, its loop, reload and a graceful end."""

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Final

import uvicorn

from proxy.memory.tasks import Tasks, ignore_late_lookups
from proxy.observe.log import logging_to
from proxy.server import listening, signals
from proxy.server.app import App
from proxy.server.protocol import Protocol
from proxy.server.reload import Reload
from proxy.settings.settings import Settings

END_WITHIN: Final = 3.0
"""Seconds beyond the grace of calls in which a process ends: memory writes what is pending."""

# What has not ended by then ends with the process, before that is killed; of these seconds the log has some.
_MARGIN: Final = 0.3
_LOGGING: Final = 0.1
# Turns leave no cycles behind. With less room than what two hundred of them hold, the collector would look at
# them in vain all the time.
_GC_THRESHOLDS: Final = (20_000, 25, 100)
# In seconds. Calls wait on the loop: threads that write to memory or to the log give way to it after so long.
_SWITCH_INTERVAL: Final = 0.0005
# Of mallopt(3): from how many bytes on a block is mapped by itself, and unmapped when it is free.
_MMAP_THRESHOLD: Final = -3
_LARGE_BLOCK: Final = 128 * 1024
# They share one interpreter with the loop, which waits for its turn among them: more cores need no more.
_THREADS: Final = 4

_log: Final = logging.getLogger("turnkeeper")

Work = Callable[[], Coroutine[None, None, None]]


def return_large_blocks() -> None:
    """Has this process, and those forked from it, give large blocks of memory back as soon as they are free.

    glibc raises the size that it does so for with each such block, up to 32 MB: after a few large requests,
    hundreds of megabytes would stay with the process.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # of another C library, which does so anyhow
            ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE_BLOCK)


def serve(
    app: App, reload: Reload, settings: Settings, sockets: list[socket.socket], tasks: Sequence[Work] = ()
) -> None:
    """Serves until SIGTERM or SIGINT; ``tasks`` run meanwhile."""
    signals.block()
    # uvicorn raises the signal again when it is done; having ended well is no failure.
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: None)
    # What has been loaded so far stays for good: the collector need not look at it.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_INTERVAL)
    config = uvicorn_config(app, grace=settings.listen.grace)
    with logging_to(sys.stderr, form=settings.log.format, level=settings.log.level):
        drain = min(settings.listen.drain, settings.listen.grace)
        Server(config, app, reload, [listening.watch_file_limit, *tasks], drain=drain).run(sockets)


def uvicorn_config(app: App, *, host: str = "127.0.0.1", port: int = 0, grace: float = 6.0) -> uvicorn.Config:
    """Uvicorn's configuration: its fastest parts, and no log line per request. ``grace`` is in seconds."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=Protocol,
        ws="none",
        lifespan="on",
        access_log=False,
        proxy_headers=False,  # a client's address is of no use here
        log_config=None,
        log_level="warning",
        server_header=False,
        backlog=2048,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=grace,  # type: ignore[arg-type]
    )


class _WorkThreads(ThreadPoolExecutor):
    """Threads that the end of the loop does not wait for: nothing takes their results by then."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002, ARG002
        super().shutdown(wait=False, cancel_futures=True)


class Server(uvicorn.Server):
    """A uvicorn server that announces its end, and reloads the configuration on SIGHUP.

    New calls are taken for ``drain`` seconds after the signal that ends it.
    """

    def __init__(
        self, config: uvicorn.Config, app: App, reload: Reload, tasks: Sequence[Work] = (), *, drain: float
    ) -> None:
        super().__init__(config)
        self._drain = drain
        self._app = app
        self._reload = reload
        self._works = tasks
        self._tasks = Tasks()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts serving, the tasks, and listening for SIGHUP."""
        await super().startup(sockets)
        loop = asyncio.get_running_loop()
        ignore_late_lookups(loop)
        loop.set_default_executor(_WorkThreads(_THREADS, "work"))
        if hasattr(signal, "SIGHUP"):
            loop.add_signal_handler(signal.SIGHUP, self._on_sighup)
        for work in self._works:
            self._tasks.start(work())
        loop.call_soon(signals.unblock)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the tasks, then serving."""
        signals.block(signals.RELOAD)  # once the loop is closed, a SIGHUP would end the process
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # A client that keeps its connection learns it before it sends a turn on one that is being closed.
        self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        # A load balancer must be able to read in /readyz that this server ends, while it still answers.
        clock = asyncio.get_running_loop().time
        start, grace = clock(), self.config.timeout_graceful_shutdown or 0.0
        if not self._app.orphaned:  # then another server is to take its place at once
            await asyncio.sleep(self._drain)
        rest = max(0.0, grace - (clock() - start))
        self.config.timeout_graceful_shutdown = rest  # type: ignore[assignment]
        asyncio.get_running_loop().call_later(rest, self._abort_unread)
        await self._close(sockets or [])
        await super().shutdown(sockets)

    async def _close(self, sockets: Sequence[socket.socket]) -> None:
        """Stops listening. Connections that the kernel has made are served: it would reset them."""
        waiting = [connection for each in sockets for connection in listening.accept_all(each)]
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        for connection in waiting:
            await loop.connect_accepted_socket(self._protocol, connection)

    def _protocol(self) -> Protocol:
        return Protocol(self.config, self.server_state, self.lifespan.state)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handles SIGTERM and SIGINT: /readyz says so while calls last, and those under way may end."""
        if not self.should_exit:
            # In a thread: what holds up the end may be the loop.
            seconds = (self.config.timeout_graceful_shutdown or 0.0) + END_WITHIN - _MARGIN
            threading.Thread(target=self._end_late, args=(seconds,), daemon=True).start()
        self._app.drain()
        if sys.platform != "win32":  # Ctrl-C reaches all processes, and the first one sends SIGTERM as well
            sig = signal.SIGTERM
        super().handle_exit(sig, frame)

    def _end_late(self, seconds: float) -> None:
        """Ends the process after so many seconds, whatever holds it up, and says what is not written."""
        time.sleep(seconds)
        if count := self._app.pending_turns:
            _log.error("%d turns could not be written to memory", count)
        time.sleep(_LOGGING)
        os._exit(0)

    def _abort_unread(self) -> None:
        # A client that does not read could not be told either that its call is cancelled.
        for connection in list(self.server_state.connections):
            if isinstance(connection, Protocol) and connection.write_paused:
                connection.transport.abort()

    def _on_sighup(self) -> None:
        if not self.should_exit:
            self._tasks.start(self._reload.reload())
