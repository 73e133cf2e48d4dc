"""What the processes of one port tell each other."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from proxy.memory.stores.store import Key
from proxy.observe.observation import TurnReport
from proxy.server.app import App
from proxy.turn.active import Slot, TurnClaim

LARGEST: Final = 200_000
"""So many bytes has a note at most."""
_AT_ONCE: Final = 100
_PAUSE, _TRIES = 0.1, 600
_log = logging.getLogger("turnkeeper")
Inbox = tuple[socket.socket, socket.socket]
"""The end that its owner reads, and the one that everybody writes to."""
_EVERY: Final = 1.0
_LOOKING_FOR: Final = 3.0


class TurnMessage(msgspec.Struct, frozen=True, tag="turned"):
    """A turn began to answer, or has ended."""

    account: TurnReport


class WatchingMessage(msgspec.Struct, frozen=True, tag="looking"):
    """Somebody looks on, for a few seconds more."""


class StartMessage(msgspec.Struct, frozen=True, tag="entered"):
    """A turn of a session and a pipeline began ``at``, by ``time.monotonic``; ``asked`` is what it shows."""

    key: Key
    pipeline: str
    at: float
    asked: msgspec.Raw


class ErasureMessage(msgspec.Struct, frozen=True, tag="forgotten"):
    """Nothing may be kept any more of a tenant's session, or of one of its persons."""

    tenant: str
    session: str | None
    user: str | None


Message = TurnMessage | WatchingMessage | StartMessage | ErasureMessage


def inboxes(count: int) -> list[Inbox]:
    """One for each process, made before there are several."""
    return [_inbox() for _ in range(count)]


class Bus:
    """The other processes. What they have no room for is lost, as is what fits no note; nobody waits.

    What is insisted on is told again.
    """

    def __init__(self, among: Sequence[Inbox], own: int) -> None:
        self.name = f"process {own + 1} of {len(among)}, with the turns that it has answered"
        self._own = among[own][0]
        self._others = [inbox[1] for place, inbox in enumerate(among) if place != own]
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Message)

    def send(self, note: Message) -> None:
        """Tells all others."""
        with contextlib.suppress(OverflowError, ValueError):  # what cannot be written
            said = self._encoder.encode(note)
            if len(said) <= LARGEST:
                _sent(said, self._others)

    def send_reliably(self, note: Message) -> None:
        """The same; who has no room is told again, for a minute."""
        self._insist(self._encoder.encode(note), self._others, _TRIES)

    def _insist(self, said: bytes, others: Sequence[socket.socket], tries: int) -> None:
        missed = _sent(said, others)
        if missed and tries:
            asyncio.get_running_loop().call_later(_PAUSE, self._insist, said, missed, tries - 1)
        elif missed:
            _log.error("What was forgotten here may still be kept by %d other processes", len(missed))

    def receive(self, hear: Callable[[Message], None]) -> None:
        """From now on ``hear`` is called with what the others tell."""
        asyncio.get_running_loop().add_reader(self._own, self._read, hear)

    def _read(self, hear: Callable[[Message], None]) -> None:
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


# More than one is to find room.
_MOST_SHOWN: Final = LARGEST // 2


class BusMember:
    """An application's part in a crew. It ends with the first process, whose end ``lifeline`` tells."""

    def __init__(self, app: App, neighbours: Bus, lifeline: int) -> None:
        self._app = app
        self._neighbours = neighbours
        self._lifeline = lifeline
        self._encoder = msgspec.msgpack.Encoder()
        self._asked = msgspec.msgpack.Decoder(TurnClaim)

    async def run(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._lifeline, self._orphaned)
        self._neighbours.receive(self._hear)
        self._app.active_turns.publish = self._entered
        self._app.reporter.broadcast = lambda account: self._neighbours.send(TurnMessage(account))
        self._app.traces.broadcast = lambda *whose: self._neighbours.send_reliably(ErasureMessage(*whose))
        self._app.process_name = self._neighbours.name
        while True:
            self._app.metrics.publish()
            if self._app.feed.has_subscribers:
                self._neighbours.send(WatchingMessage())
            await asyncio.sleep(_EVERY)

    def _orphaned(self) -> None:
        asyncio.get_running_loop().remove_reader(self._lifeline)
        os.kill(os.getpid(), signal.SIGTERM)

    def _entered(self, seat: Slot, at: float, asked: TurnClaim) -> None:
        key, pipeline = seat
        self._neighbours.send(StartMessage(key, pipeline, at, self._shown(asked)))

    def _shown(self, asked: TurnClaim) -> msgspec.Raw:
        """All of it; less of what is long, or holds a number that is too large for any note."""
        with contextlib.suppress(OverflowError):
            whole = self._encoder.encode(asked)
            if len(whole) <= _MOST_SHOWN:
                return msgspec.Raw(whole)
        return msgspec.Raw(self._encoder.encode(asked.condensed()))

    def _hear(self, note: Message) -> None:
        if isinstance(note, TurnMessage):
            self._app.reporter.receive(note.account)
        elif isinstance(note, ErasureMessage):
            self._app.traces.remove(note.tenant, session=note.session, user=note.user)
        elif isinstance(note, WatchingMessage):
            self._app.reporter.watched_until = time.monotonic() + _LOOKING_FOR
        else:
            seat = note.key, note.pipeline
            self._app.active_turns.cancel_superseded(seat, note.at, lambda: self._asked.decode(note.asked))
