"""The sockets at which callers are awaited, taken before anybody is told of them."""

import errno
import socket

from proxy.errors import ConfigError
from proxy.hostname import ADVICE, is_host_name

_BACKLOG = 2048
# What a client does not read waits with the model. Left alone, the kernel takes megabytes, and we as many.
_ROOM = 128 * 1024
# In milliseconds. Left alone, the kernel asks a silent machine for a quarter of an hour whether it is still
# there, and one that answers and reads nothing for ever: that long a turn would not be over.
_UNREAD_FOR = 60_000


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets at all addresses of a host. Raises ConfigError, which says what to do, where there is none."""
    if not is_host_name(host):
        raise ConfigError(f"{host}: {ADVICE}")
    try:
        return _bound(host, port)
    except OSError as error:
        raise ConfigError(_said(host, port, error)) from None


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
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_FOR)


def _said(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} on {host} is taken by another program: end that, or choose another with PORT."
    if error.errno == errno.EACCES:
        return f"Port {port} may not be opened by this user: choose one above 1023 with PORT."
    return f"{host}:{port} cannot be listened on ({error.strerror}): choose another with HOST and PORT."
