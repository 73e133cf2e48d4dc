"""Messages between processes, and the bus that carries them among those of one port."""

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
"""The size of a message in bytes, at most."""
_BATCH: Final = 100
_PAUSE, _TRIES = 0.1, 600
# Calls that begin within it are listed together: a read and a write of one alone costs twice as much.
_GATHERING: Final = 0.25
_MOST_WRITTEN: Final = 10_000
_ORPHAN_LIVES: Final = 60.0
_log = logging.getLogger("turnkeeper")


class TurnMessage(msgspec.Struct, frozen=True, tag="turn"):
    """A turn has begun to answer, or has ended."""

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
    """Traces of a tenant's session, or of one of its users, are to be removed."""

    tenant: str
    session: str | None
    user: str | None


class WrittenMessage(msgspec.Struct, frozen=True, tag="written"):
    """Sessions were written, each with the time from which on there is background work.

    ``incomplete`` is whether others were written, too, whose names are lost.
    """

    sessions: Sequence[tuple[Key, float]] = ()
    incomplete: bool = False


class BackgroundMessage(msgspec.Struct, frozen=True, tag="background"):
    """The jobs of the background process by their names, and whether each fails."""

    failures: Mapping[str, bool]


class ReloadMessage(msgspec.Struct, frozen=True, tag="reload"):
    """A server has read its configuration again: others may have a new one, too."""


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
    """A claim as bytes: condensed where it would have more than ``largest``, or cannot be encoded."""
    with contextlib.suppress(OverflowError):  # a number that is too large for any message
        data = msgspec.msgpack.encode(claim)
        if len(data) <= largest:
            return data
    return msgspec.msgpack.encode(claim.condensed())


Inbox = tuple[socket.socket, socket.socket]
"""The end that its owner reads, and the end that all others write to."""


def inboxes(count: int) -> list[Inbox]:
    """Makes an inbox for each process, before they are forked."""
    return [_inbox() for _ in range(count)]


def _inbox() -> Inbox:
    try:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError:  # macOS has none of these
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for end in ends:
        end.setblocking(False)  # noqa: FBT003
    ends[1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * LARGEST)
    return ends


class Bus:
    """The way to the other processes. Nothing waits: a message that an inbox has no room for is lost."""

    def __init__(self, all_inboxes: Sequence[Inbox], own: int) -> None:
        self.name = f"process {own + 1} of {len(all_inboxes)}, with the turns that it has answered"
        self._inbox = all_inboxes[own][0]
        self._others = [inbox[1] for index, inbox in enumerate(all_inboxes) if index != own]
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(BusMessage)

    def send(self, message: BusMessage) -> None:
        """Sends a message to all other processes; one that is too large is lost."""
        with contextlib.suppress(OverflowError, ValueError):  # what cannot be encoded
            data = self._encoder.encode(message)
            if len(data) <= LARGEST:
                self._send(data, self._others)

    def send_reliably(self, message: BusMessage) -> None:
        """Sends a message; for a minute, it is sent again to those that have no room for it."""
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
        """Returns those that could not be reached."""
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
            _log.error("What was forgotten here may still be kept by %d other processes", len(missed))

    def read(self, callback: Callable[[BusMessage], None]) -> None:
        """Calls ``callback`` with the messages that are there."""
        with contextlib.suppress(BlockingIOError, msgspec.DecodeError):
            for _ in range(_BATCH):
                callback(self._decoder.decode(self._inbox.recv(LARGEST)))


class WrittenSessions:
    """Tells the background process of the sessions that were written, a moment later, by its ``inbox``.

    Nothing waits for it. What the inbox has no room for is sent later: 10,000 names at the most.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox[1]
        self._sessions: dict[Key, float] = {}
        self._incomplete = False
        self._timer: asyncio.TimerHandle | None = None
        self._encoder = msgspec.msgpack.Encoder()

    def session_written(self, key: Key, due: float) -> None:
        """Takes the name of a session, and when work on it is due."""
        self._sessions[key] = due
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GATHERING, self._send)

    def names_lost(self) -> None:
        """Says that sessions were written whose names are not known: a server has died."""
        self._incomplete = True
        self.flush()

    def flush(self) -> None:
        """Sends what there is room for."""
        while self._sessions or self._incomplete:
            batch = [*islice(self._sessions.items(), _BATCH)]
            data = self._encoder.encode(WrittenMessage(batch, self._incomplete))
            if len(data) > LARGEST:  # ids of many kilobytes
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
    """Ends this process, as SIGTERM does, once its parent has died: ``lifeline`` ends then.

    ``orphaned`` is called before. A process that has no parent any more to kill it has a minute to end.
    """
    loop = asyncio.get_running_loop()

    def end() -> None:
        loop.remove_reader(lifeline)
        orphaned()
        die_within(_ORPHAN_LIVES)
        os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(lifeline, end)
