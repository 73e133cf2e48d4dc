"""Listening sockets, and the limit of open files that bounds their connections."""

import asyncio
import contextlib
import errno
import logging
import math
import os
import socket
import sys
from collections.abc import Iterator
from typing import Final

from proxy.errors import ConfigError
from proxy.hostname import ADVICE, is_host_name

if sys.platform != "win32":
    import resource

_BACKLOG: Final = 2048
# What a client does not read waits with the model. Left alone, the kernel takes megabytes, and we as many.
_SEND_BUFFER: Final = 128 * 1024
# In milliseconds. Left alone, the kernel probes a silent machine for a quarter of an hour, and one that
# answers and reads nothing for ever: that long a turn would not be over.
_UNREAD_TIMEOUT = 60_000
# More than any one process can serve; some systems call infinite what they do not give.
_MOST_FILES: Final = 65_536
_NEARLY_ALL: Final = 0.9
_CHECK_INTERVAL: Final = 1.0
_WARNING_INTERVAL: Final = 600.0
_log: Final = logging.getLogger("turnkeeper")


def listen(host: str, port: int) -> list[socket.socket]:
    """Listens at all addresses of a host; raises ConfigError, which says what to do, where that fails."""
    if not is_host_name(host):
        raise ConfigError(f"{host}: {ADVICE}")
    try:
        return _bind(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            message = (
                f"Port {port} on {host} is taken by another program: end that, or choose another with PORT."
            )
        elif error.errno == errno.EACCES:
            message = f"Port {port} may not be opened by this user: choose one above 1023 with PORT."
        else:
            reason = error.strerror
            message = f"{host}:{port} cannot be listened on ({reason}): choose another with HOST and PORT."
        raise ConfigError(message) from None


def _bind(host: str, port: int) -> list[socket.socket]:
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = list(dict.fromkeys((family, address[:2]) for family, _, _, _, address in infos))
    if not port:
        del addresses[1:]  # each would take a free port of its own
    sockets: list[socket.socket] = []
    for family, address in addresses:
        try:
            server = socket.create_server(address, family=family, backlog=_BACKLOG)
        except OSError as error:
            # A name may stand for addresses that this machine does not have, such as IPv6's in a container.
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
    """Accepts the connections that wait at a socket which does not block."""
    with contextlib.suppress(OSError):  # there is none, or no file descriptor for one
        while True:
            yield server.accept()[0]


def raise_file_limit() -> None:
    """Raises the limit of open files as far as the system allows: its usual 1024 are two a call."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with contextlib.suppress(ValueError, OSError):  # the system gives less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


async def watch_file_limit() -> None:
    """Warns, every ten minutes at the most, that hardly any files are left."""
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
    """The number that the next file gets; without one, infinity."""
    try:
        number = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return math.inf
    os.close(number)
    return number
