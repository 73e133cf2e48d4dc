"""What the processes of one port tell each other."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from proxy.account import Account
from proxy.memory.store import Key

LARGEST: Final = 200_000
"""So many bytes has a note at most."""
_AT_ONCE: Final = 100


class Turned(msgspec.Struct, frozen=True, tag="turned"):
    """A turn began to answer, or has ended."""

    account: Account


class Looking(msgspec.Struct, frozen=True, tag="looking"):
    """Somebody looks on, for a few seconds more."""


class Entered(msgspec.Struct, frozen=True, tag="entered"):
    """A turn of a session and a pipeline has begun, ``at`` seconds since 1970; ``asked`` is what it shows."""

    key: Key
    pipeline: str
    at: float
    asked: msgspec.Raw


class Forgotten(msgspec.Struct, frozen=True, tag="forgotten"):
    """Nothing may be kept any more of a tenant's session, or of one of its persons."""

    tenant: str
    session: str | None
    user: str | None


Note = Turned | Looking | Entered | Forgotten
Inbox = tuple[socket.socket, socket.socket]
"""The end that its owner reads, and the one that everybody writes to."""


def inboxes(count: int) -> list[Inbox]:
    """One for each process, made before there are several."""
    return [_inbox() for _ in range(count)]


class Neighbours:
    """The other processes. What they have no room for is lost, as is what fits no note, and nobody waits."""

    def __init__(self, among: Sequence[Inbox], own: int) -> None:
        self.place = f"process {own + 1} of {len(among)}, with the turns that it has answered"
        self._own = among[own][0]
        self._others = [inbox[1] for place, inbox in enumerate(among) if place != own]
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Note)

    def tell(self, note: Note) -> None:
        """Tells all others."""
        with contextlib.suppress(OverflowError, ValueError):  # what cannot be written
            self._send(self._encoder.encode(note))

    def listen(self, hear: Callable[[Note], None]) -> None:
        """From now on ``hear`` is called with what the others tell."""
        asyncio.get_running_loop().add_reader(self._own, self._read, hear)

    def _send(self, said: bytes) -> None:
        for other in self._others if len(said) <= LARGEST else ():
            with contextlib.suppress(OSError):
                other.send(said)

    def _read(self, hear: Callable[[Note], None]) -> None:
        with contextlib.suppress(BlockingIOError, msgspec.DecodeError):
            for _ in range(_AT_ONCE):
                hear(self._decoder.decode(self._own.recv(LARGEST)))


def _inbox() -> Inbox:
    try:
        made = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError:  # macOS has none of these
        made = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for end in made:
        end.setblocking(False)  # noqa: FBT003
    made[1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * LARGEST)
    return made
