"""One server process: its sockets, its limit of open files, its loop, reloading and a graceful end."""

import asyncio
import contextlib
import ctypes
import errno
import gc
import itertools
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import FrameType
from typing import Final

import uvicorn

from proxy.errors import ConfigError
from proxy.hostname import ADVICE, is_host_name
from proxy.memory.tasks import Tasks, ignore_late_lookups
from proxy.observe.log import logging_to
from proxy.server import signals
from proxy.server.app import App
from proxy.server.protocol import Protocol
from proxy.server.reload import Reload
from proxy.settings.settings import Settings

if sys.platform != "win32":
    import resource

END_WITHIN: Final = 3.0
"""The seconds after the grace of calls within which a process ends, and memory writes pending turns."""

# In seconds. A process ends itself this long before it would be killed; the log has _LOGGING of it to write.
_MARGIN: Final = 0.3
_LOGGING: Final = 0.1
# Turns leave no reference cycles. With thresholds below the objects of two hundred turns, the collector would
# visit active turns all the time, in vain.
_GC_THRESHOLDS: Final = (20_000, 25, 100)
# In seconds. Calls wait for the loop, so threads that write to memory or to the log must yield soon.
_SWITCH_INTERVAL: Final = 0.0005
# The option of mallopt(3) for the size from which a block has its own mapping, which is unmapped when freed.
_MMAP_THRESHOLD: Final = -3
_LARGE_BLOCK: Final = 128 * 1024
_ANOTHER: Final = "set another in the configuration's listen, or with HOST and PORT where that reads them"
# The loop waits for the interpreter among these threads, so there are no more of them with more cores.
_THREADS: Final = 4
_BACKLOG: Final = 2048
# A slow client slows the model down. By default the kernel would buffer megabytes, and this process as many.
_SEND_BUFFER: Final = 128 * 1024
# In milliseconds. By default the kernel probes a silent machine for a quarter of an hour, and for ever one
# that answers but reads nothing, and a turn would last as long.
_UNREAD_TIMEOUT = 60_000
# Connections accepted at once, so that other processes at the same port get their share.
_MOST_ACCEPTED: Final = 16
# More than one process can serve. Some systems report an infinite limit that they do not grant.
_MOST_FILES: Final = 65_536
_NEARLY_ALL: Final = 0.9
_CHECK_INTERVAL: Final = 1.0
_WARNING_INTERVAL: Final = 600.0

_log: Final = logging.getLogger("turnkeeper")

Work = Callable[[], Coroutine[None, None, None]]


def return_large_blocks() -> None:
    """Makes this process, and those forked from it, return large blocks of memory as soon as they are free.

    By default glibc raises the size of such blocks with each one that is freed, up to 32 MB, and a process
    would keep hundreds of megabytes after a few large requests.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # other C libraries return such blocks anyway
            ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE_BLOCK)


def serve(
    app: App, reload: Reload, settings: Settings, sockets: list[socket.socket], tasks: Sequence[Work] = ()
) -> None:
    """Serves until SIGTERM or SIGINT; ``tasks`` run meanwhile."""
    signals.block()
    # uvicorn raises the signal again at its end, and a regular end must not look like a failure.
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: None)
    # Objects loaded so far are never freed, so the collector need not visit them.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_INTERVAL)
    config = uvicorn_config(app, grace=settings.listen.grace)
    with logging_to(sys.stderr, form=settings.log.format, level=settings.log.level):
        drain = min(settings.listen.drain, settings.listen.grace)
        Server(config, app, reload, [watch_file_limit, *tasks], drain=drain).run(sockets)


def uvicorn_config(app: App, *, host: str = "127.0.0.1", port: int = 0, grace: float = 6.0) -> uvicorn.Config:
    """Returns uvicorn's fastest configuration, without a log line per request. ``grace`` is in seconds."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=Protocol,
        ws="none",
        lifespan="on",
        access_log=False,
        proxy_headers=False,  # a client's address is not used
        log_config=None,
        log_level="warning",
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=grace,  # type: ignore[arg-type]
    )


class _WorkThreads(ThreadPoolExecutor):
    """A thread pool for which the end of the loop does not wait, since nothing uses its results then."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002, ARG002
        super().shutdown(wait=False, cancel_futures=True)


class Server(uvicorn.Server):
    """A uvicorn server that announces its end, and reloads the configuration on SIGHUP.

    After the signal that ends it, new calls are accepted for ``drain`` seconds.
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
        self._sockets: Sequence[socket.socket] = ()
        self._connecting = Tasks()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts serving, the tasks and the handler of SIGHUP."""
        self._sockets = sockets or ()
        protocol = partial(Protocol, on_made=self._accept_more)
        self.config.http_protocol_class = protocol  # type: ignore[assignment]
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
        # Tells clients that keep their connection not to send another turn on it.
        self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        # A load balancer must have time to read in /readyz that this server ends.
        clock = asyncio.get_running_loop().time
        start, grace = clock(), self.config.timeout_graceful_shutdown or 0.0
        if not self._app.orphaned:  # an orphan makes way for another server at once
            await asyncio.sleep(self._drain)
        rest = max(0.0, grace - (clock() - start))
        self.config.timeout_graceful_shutdown = rest  # type: ignore[assignment]
        asyncio.get_running_loop().call_later(rest, self._abort_unread)
        # Stops listening. Connections that wait in the kernel are served, since it would reset them.
        waiting = [connection for each in sockets or [] for connection in accept_all(each)]
        for server in self.servers:
            server.close()
        for connection in waiting:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)
        await super().shutdown(sockets)

    def _accept_more(self) -> None:
        """Accepts further waiting connections after a new one.

        The loop accepts one in each round. With many active calls rounds are long, and new callers would wait
        for seconds.
        """
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            for connection in itertools.islice(accept_all(listening), _MOST_ACCEPTED):
                self._connecting.start(loop.connect_accepted_socket(self._protocol, connection))

    def _protocol(self) -> Protocol:
        return Protocol(self.config, self.server_state, self.lifespan.state)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handles SIGTERM and SIGINT: /readyz reports the end, and active calls may end within the grace."""
        if not self.should_exit:
            # In a thread, since the loop itself may be blocked.
            seconds = (self.config.timeout_graceful_shutdown or 0.0) + END_WITHIN - _MARGIN
            threading.Thread(target=self._end_late, args=(seconds,), daemon=True).start()
        self._app.drain()
        if sys.platform != "win32":  # Ctrl-C reaches all processes, and the first one also sends SIGTERM
            sig = signal.SIGTERM
        super().handle_exit(sig, frame)

    def _end_late(self, seconds: float) -> None:
        """Ends the process after this many seconds in any case, and logs how many turns are not written."""
        time.sleep(seconds)
        if count := self._app.pending_turns:
            _log.error("%d turns could not be written to memory", count)
        time.sleep(_LOGGING)
        os._exit(0)

    def _abort_unread(self) -> None:
        # A client that does not read would not get the message that its call is cancelled either.
        for connection in list(self.server_state.connections):
            if isinstance(connection, Protocol) and connection.write_paused:
                connection.transport.abort()

    def _on_sighup(self) -> None:
        if not self.should_exit:
            self._tasks.start(self._reload.reload())


def listen(host: str, port: int) -> list[socket.socket]:
    """Listens at all addresses of a host; raises ConfigError with advice if that fails."""
    if not is_host_name(host):
        raise ConfigError(f"{host}: {ADVICE}")
    try:
        return _bind(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            message = f"Port {port} on {host} is taken by another program: end that, or {_ANOTHER}."
        elif error.errno == errno.EACCES:
            message = f"Port {port} may not be opened by this user: {_ANOTHER}, one above 1023."
        else:
            reason = error.strerror
            message = f"{host}:{port} cannot be listened on ({reason}): {_ANOTHER}."
        raise ConfigError(message) from None


def _bind(host: str, port: int) -> list[socket.socket]:
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = list(dict.fromkeys((family, address[:2]) for family, _, _, _, address in infos))
    if not port:
        del addresses[1:]  # each would get another free port
    sockets: list[socket.socket] = []
    for family, address in addresses:
        try:
            server = socket.create_server(address, family=family, backlog=_BACKLOG)
        except OSError as error:
            # A name may have addresses that this machine lacks, such as IPv6 in a container.
            if error.errno != errno.EADDRNOTAVAIL or (address == addresses[-1][1] and not sockets):
                raise
            continue
        # Each connection inherits these.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_TIMEOUT)
        sockets.append(server)
    return sockets


def accept_all(server: socket.socket) -> Iterator[socket.socket]:
    """Yields the connections that wait at a non-blocking socket."""
    with contextlib.suppress(OSError):  # no connection waits, or there is no file descriptor
        while True:
            yield server.accept()[0]


def raise_file_limit() -> None:
    """Raises the limit of open files as far as the system allows; a call needs two of the usual 1024."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with contextlib.suppress(ValueError, OSError):  # the system grants less than it reports
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


async def watch_file_limit() -> None:
    """Warns, at most every ten minutes, when nearly all files are open."""
    while sys.platform != "win32":
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        nearly_all = limit != resource.RLIM_INFINITY and _lowest_free_file() >= _NEARLY_ALL * limit
        if nearly_all:
            _log.warning(
                "Nearly all of the %d files that this server may have open are: once all are, callers are"
                " closed off without an answer. Let it have more of them (ulimit -n), or serve with more"
                " processes",
                limit,
            )
        await asyncio.sleep(_WARNING_INTERVAL if nearly_all else _CHECK_INTERVAL)


def _lowest_free_file() -> float:
    """Returns the number of the next file that is opened; infinity if none can be opened."""
    try:
        number = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return math.inf
    os.close(number)
    return number
