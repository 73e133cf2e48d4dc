"""The sockets at which callers are awaited, taken before anybody is told of them."""

import asyncio
import contextlib
import errno
import logging
import math
import os
import socket
import sys
from typing import Final

from proxy.errors import ConfigError
from proxy.hostname import ADVICE, is_host_name

_BACKLOG = 2048
# What a client does not read waits with the model. Left alone, the kernel takes megabytes, and we as many.
_ROOM = 128 * 1024
# In milliseconds. Left alone, the kernel asks a silent machine for a quarter of an hour whether it is still
# there, and one that answers and reads nothing for ever: that long a turn would not be over.
_UNREAD_TIMEOUT = 60_000
# More than any one process can serve; some systems call infinite what they do not give.
_MOST: Final = 65_536
_NEARLY_ALL: Final = 0.9
_EVERY: Final = 1.0
_QUIET: Final = 600.0
_log: Final = logging.getLogger("turnkeeper")


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets at all addresses of a host. Raises ConfigError, which says what to do, where there is none."""
    if not is_host_name(host):
        raise ConfigError(f"{host}: {ADVICE}")
    try:
        return _bound(host, port)
    except OSError as error:
        raise ConfigError(_advice(host, port, error)) from None


def _bound(host: str, port: int) -> list[socket.socket]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = list(dict.fromkeys((family, address[:2]) for family, _, _, _, address in found))
    if not port:
        del addresses[1:]  # each would take a free port of its own
    made: list[socket.socket] = []
    for family, address in addresses:
        try:
            made.append(socket.create_server(address, family=family, backlog=_BACKLOG))
            _set_up(made[-1])
        except OSError as error:
            # A name may stand for addresses that this machine does not have, such as IPv6's in a container.
            if error.errno != errno.EADDRNOTAVAIL or (address == addresses[-1][1] and not made):
                raise
    return made


def _set_up(listening: socket.socket) -> None:
    """Each connection inherits it."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_TIMEOUT)


def _advice(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} on {host} is taken by another program: end that, or choose another with PORT."
    if error.errno == errno.EACCES:
        return f"Port {port} may not be opened by this user: choose one above 1023 with PORT."
    return f"{host}:{port} cannot be listened on ({error.strerror}): choose another with HOST and PORT."


if sys.platform != "win32":
    import resource


def raise_file_limit() -> None:
    """As many as the system lets this program ask for; by default most give it 1024, and a call takes two."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(ValueError, OSError):  # the system gives less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


async def watch_file_limit() -> None:
    """Says, every ten minutes at the most, that hardly any are left."""
    while sys.platform != "win32":
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        are_few = most != resource.RLIM_INFINITY and _lowest_free() >= _NEARLY_ALL * most
        if are_few:
            _log.warning(
                "Nearly all of the %d files that this server may have open are: once all are, callers are"
                " closed off without an answer. Let it have more of them (ulimit -n), or serve with more"
                " processes",
                most,
            )
        await asyncio.sleep(_QUIET if are_few else _EVERY)


def _lowest_free() -> float:
    """The number that the next file gets; without one, infinity."""
    try:
        number = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return math.inf
    os.close(number)
    return number
