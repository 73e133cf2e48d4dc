"""What the processes of one port tell each other."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from proxy.memory.stores.store import Key
from proxy.observe.observation import TurnReport

LARGEST: Final = 200_000
"""So many bytes has a note at most."""
_AT_ONCE: Final = 100
_PAUSE, _TRIES = 0.1, 600
_log = logging.getLogger("turnkeeper")


class Turned(msgspec.Struct, frozen=True, tag="turned"):
    """A turn began to answer, or has ended."""

    account: TurnReport


class Looking(msgspec.Struct, frozen=True, tag="looking"):
    """Somebody looks on, for a few seconds more."""


class Entered(msgspec.Struct, frozen=True, tag="entered"):
    """A turn of a session and a pipeline began ``at``, by ``time.monotonic``; ``asked`` is what it shows."""

    key: Key
    pipeline: str
    at: float
    asked: msgspec.Raw


class ForgottenNote(msgspec.Struct, frozen=True, tag="forgotten"):
    """Nothing may be kept any more of a tenant's session, or of one of its persons."""

    tenant: str
    session: str | None
    user: str | None


Note = Turned | Looking | Entered | ForgottenNote
Inbox = tuple[socket.socket, socket.socket]
"""The end that its owner reads, and the one that everybody writes to."""


def inboxes(count: int) -> list[Inbox]:
    """One for each process, made before there are several."""
    return [_inbox() for _ in range(count)]


class Neighbours:
    """The other processes. What they have no room for is lost, as is what fits no note; nobody waits.

    What is insisted on is told again.
    """

    def __init__(self, among: Sequence[Inbox], own: int) -> None:
        self.place = f"process {own + 1} of {len(among)}, with the turns that it has answered"
        self._own = among[own][0]
        self._others = [inbox[1] for place, inbox in enumerate(among) if place != own]
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Note)

    def tell(self, note: Note) -> None:
        """Tells all others."""
        with contextlib.suppress(OverflowError, ValueError):  # what cannot be written
            said = self._encoder.encode(note)
            if len(said) <= LARGEST:
                _sent(said, self._others)

    def insist(self, note: Note) -> None:
        """The same; who has no room is told again, for a minute."""
        self._insist(self._encoder.encode(note), self._others, _TRIES)

    def _insist(self, said: bytes, others: Sequence[socket.socket], tries: int) -> None:
        missed = _sent(said, others)
        if missed and tries:
            asyncio.get_running_loop().call_later(_PAUSE, self._insist, said, missed, tries - 1)
        elif missed:
            _log.error("What was forgotten here may still be kept by %d other processes", len(missed))

    def listen(self, hear: Callable[[Note], None]) -> None:
        """From now on ``hear`` is called with what the others tell."""
        asyncio.get_running_loop().add_reader(self._own, self._read, hear)

    def _read(self, hear: Callable[[Note], None]) -> None:
        with contextlib.suppress(BlockingIOError, msgspec.DecodeError):
            for _ in range(_AT_ONCE):
                hear(self._decoder.decode(self._own.recv(LARGEST)))


def _sent(said: bytes, others: Iterable[socket.socket]) -> list[socket.socket]:
    """Whom it could not be told."""
    missed = []
    for other in others:
        try:
            other.send(said)
        except OSError:
            missed.append(other)
    return missed


def _inbox() -> Inbox:
    try:
        made = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError:  # macOS has none of these
        made = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for end in made:
        end.setblocking(False)  # noqa: FBT003
    made[1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * LARGEST)
    return made
