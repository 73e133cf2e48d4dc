"""Messages between processes, and the bus between the processes of one port."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec

from proxy.memory.stores.store import Key
from proxy.observe.log import die_within
from proxy.observe.observation import TurnReport
from proxy.turn.active import TurnClaim

LARGEST: Final = 200_000
"""The largest size of a message, in bytes."""
_BATCH: Final = 100
_PAUSE, _TRIES = 0.1, 600
# In seconds. Sessions written within it are sent together, since a message for each costs twice as much.
_GATHERING: Final = 0.25
_MOST_WRITTEN: Final = 10_000
_ORPHAN_LIVES: Final = 60.0
_log = logging.getLogger("turnkeeper")


class TurnMessage(msgspec.Struct, frozen=True, tag="turn"):
    """A turn has begun its answer, or has ended."""

    report: TurnReport


class WatchingMessage(msgspec.Struct, frozen=True, tag="watching"):
    """The sender's feed has a reader, for a few seconds more."""


class StartMessage(msgspec.Struct, frozen=True, tag="start"):
    """A turn of a session and a pipeline started ``at``, by ``time.monotonic``.

    ``claim`` is a TurnClaim as ``encoded_claim`` encodes it.
    """

    key: Key
    pipeline: str
    at: float
    claim: msgspec.Raw


class ErasureMessage(msgspec.Struct, frozen=True, tag="erasure"):
    """The traces of a tenant's session, or of one of its users, must be removed."""

    tenant: str
    session: str | None
    user: str | None


class WrittenMessage(msgspec.Struct, frozen=True, tag="written"):
    """Sessions that were written, each with the time at which background work is due.

    ``incomplete`` is whether other sessions were written, too, whose names are lost.
    """

    sessions: Sequence[tuple[Key, float]] = ()
    incomplete: bool = False


class BackgroundMessage(msgspec.Struct, frozen=True, tag="background"):
    """The jobs of the background process by their names, and whether each fails."""

    failures: Mapping[str, bool]


class ReloadMessage(msgspec.Struct, frozen=True, tag="reload"):
    """A server has reloaded its configuration, and others may have a new one, too."""


BusMessage = (
    TurnMessage
    | ReloadMessage
    | WatchingMessage
    | StartMessage
    | ErasureMessage
    | WrittenMessage
    | BackgroundMessage
)


def encoded_claim(claim: TurnClaim, largest: int) -> bytes:
    """Encodes a claim; it is condensed if it has more than ``largest`` bytes, or cannot be encoded."""
    with contextlib.suppress(OverflowError):  # a number that is too large for msgpack
        data = msgspec.msgpack.encode(claim)
        if len(data) <= largest:
            return data
    return msgspec.msgpack.encode(claim.condensed())


Inbox = tuple[socket.socket, socket.socket]
"""The end that the owner reads, and the end that all others write to."""


def inboxes(count: int) -> list[Inbox]:
    """Creates an inbox for each process, before they are forked."""
    return [_inbox() for _ in range(count)]


def _inbox() -> Inbox:
    try:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError:  # not available on macOS
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for end in ends:
        end.setblocking(False)  # noqa: FBT003
    ends[1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * LARGEST)
    return ends


class Bus:
    """Sends messages to the other processes. Nothing waits: a message is lost if an inbox has no room."""

    def __init__(self, all_inboxes: Sequence[Inbox], own: int) -> None:
        self.name = f"process {own + 1} of {len(all_inboxes)}, with the turns that it has answered"
        self._inbox = all_inboxes[own][0]
        self._others = [inbox[1] for index, inbox in enumerate(all_inboxes) if index != own]
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(BusMessage)

    def send(self, message: BusMessage) -> None:
        """Sends a message to all other processes; one that is too large is lost."""
        with contextlib.suppress(OverflowError, ValueError):  # it cannot be encoded
            data = self._encoder.encode(message)
            if len(data) <= LARGEST:
                self._send(data, self._others)

    def send_reliably(self, message: BusMessage) -> None:
        """Sends a message, and retries for a minute with processes that have no room for it."""
        self._retry(self._encoder.encode(message), self._others, _TRIES)

    @property
    def has_others(self) -> bool:
        """Whether there are other processes that serve."""
        return bool(self._others)

    def receive(self, callback: Callable[[BusMessage], None]) -> None:
        """Calls ``callback`` with each message from now on."""
        asyncio.get_running_loop().add_reader(self._inbox, self.read, callback)

    def stop_receiving(self) -> None:
        """Leaves messages in the inbox from now on, until the next ``receive`` or ``read``."""
        asyncio.get_running_loop().remove_reader(self._inbox)

    @staticmethod
    def _send(data: bytes, others: Sequence[socket.socket]) -> list[socket.socket]:
        """Sends data; returns the sockets that could not be reached."""
        missed = []
        for other in others:
            try:
                other.send(data)
            except OSError:
                missed.append(other)
        return missed

    def _retry(self, data: bytes, others: Sequence[socket.socket], tries: int) -> None:
        missed = self._send(data, others)
        if missed and tries:
            asyncio.get_running_loop().call_later(_PAUSE, self._retry, data, missed, tries - 1)
        elif missed:
            _log.error("%d other processes may still have data that was deleted here", len(missed))

    def read(self, callback: Callable[[BusMessage], None]) -> None:
        """Calls ``callback`` with up to 100 messages from the inbox."""
        with contextlib.suppress(BlockingIOError, msgspec.DecodeError):
            for _ in range(_BATCH):
                callback(self._decoder.decode(self._inbox.recv(LARGEST)))


class WrittenSessions:
    """Sends the names of written sessions to the ``inbox`` of the background process, a moment later.

    Nothing waits for it. Up to 10,000 names that the inbox has no room for are sent later.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox[1]
        self._sessions: dict[Key, float] = {}
        self._incomplete = False
        self._timer: asyncio.TimerHandle | None = None
        self._encoder = msgspec.msgpack.Encoder()

    def session_written(self, key: Key, due: float) -> None:
        """Adds the name of a session, and the time at which work on it is due."""
        self._sessions[key] = due
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GATHERING, self._send)

    def names_lost(self) -> None:
        """Reports that sessions with unknown names were written, because a server has died."""
        self._incomplete = True
        self.flush()

    def flush(self) -> None:
        """Sends as many names as the inbox has room for."""
        while self._sessions or self._incomplete:
            batch = [*islice(self._sessions.items(), _BATCH)]
            data = self._encoder.encode(WrittenMessage(batch, self._incomplete))
            if len(data) > LARGEST:  # the ids have many kilobytes
                data = self._encoder.encode(WrittenMessage(incomplete=True))
            try:
                self._inbox.send(data)
            except OSError:
                break
            self._incomplete = False
            for key, _ in batch:
                del self._sessions[key]
        if len(self._sessions) > _MOST_WRITTEN:
            self._sessions.clear()
            self._incomplete = True

    def _send(self) -> None:
        self._timer = None
        self.flush()
        if self._sessions or self._incomplete:
            self._timer = asyncio.get_running_loop().call_later(_PAUSE, self._send)


def end_with_parent(lifeline: int, orphaned: Callable[[], None] = lambda: None) -> None:
    """Ends this process by SIGTERM once its parent has died, which closes ``lifeline``.

    ``orphaned`` is called first. The process has a minute to end, since no parent is left to kill it.
    """
    loop = asyncio.get_running_loop()

    def end() -> None:
        loop.remove_reader(lifeline)
        orphaned()
        die_within(_ORPHAN_LIVES)
        os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(lifeline, end)
