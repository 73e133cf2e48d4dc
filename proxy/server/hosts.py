"""Messages between the hosts that share one store of sessions."""

import asyncio
import contextlib
import itertools
import logging
import math
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from proxy.errors import TurnkeeperError
from proxy.memory.errors import StoreError, Unreadable
from proxy.memory.stores.drivers import ChannelAddress
from proxy.memory.stores.store import Key
from proxy.memory.tasks import Tasks, retrieve_exception
from proxy.newest import Newest
from proxy.server.bus import BusMessage, encoded_claim
from proxy.turn.active import ActiveTurn, ActiveTurns, GlobalId, Rival, Slot, TurnClaim

_LARGEST_CLAIM: Final = 4_000
_MOST_RECENT: Final = 256
_PAUSE, _TRIES = 0.05, 4
_RELIABLE_PAUSE, _RELIABLE_TRIES = 0.5, 120
_PRESENCE_TRIES: Final = 60
_FAREWELL: Final = 0.2
# In seconds after joining. Other hosts have answered by then.
_ANSWERED: Final = 1.0
_MOST_RELIABLE, _MOST_RECEIVED = 1000, 10_000
# No tenant can have this name.
_SEALED_FOR: Final = Key("~bus", "")
_log = logging.getLogger("turnkeeper")

# A process has joined and knows no other host, has joined and knows one, answers another one, or ends.
_ALONE, _JOINED, _HERE, _LEFT = range(4)


class _Start(msgspec.Struct, frozen=True, array_like=True):
    """A turn of a slot by its number in a process; ``again`` asks other hosts to announce theirs again."""

    key: Key
    pipeline: str
    number: int
    again: bool


class _HostMessage(msgspec.Struct, frozen=True, array_like=True):
    """Data that a process sends: a message or, with ``start``, a turn's claim; ``body`` may be encrypted.

    Reliable messages have a ``number``, because they may be sent more than once. Without a body, only the
    ``presence`` of the process is sent.
    """

    host: bytes
    process: int
    body: bytes = b""
    start: _Start | None = None
    number: int = 0
    presence: int = 0


class _Announcement(msgspec.Struct, frozen=True):
    """An own turn by its number, with its encoded claim; ``entered_at`` is by ``time.monotonic``."""

    key: Key
    pipeline: str
    number: int
    entered_at: float
    claim: bytes


class HostBus:
    """Sends messages to the processes of other hosts. Sending never waits, and failures are not reported.

    Turns of all hosts are ordered by the store's clock, and those of ``turns`` that another host's turn
    supersedes are cancelled. After an outage of the store, the last 256 turns and all active ones are
    announced again. From its first second on, a host announces no turns until it has heard from another one.
    """

    def __init__(self, address: ChannelAddress, host: bytes, turns: ActiveTurns) -> None:
        self.address = address
        self._channel, self._codec = address.open()
        self._names = self._codec.names()
        self._own = host, os.getpid()
        self._turns = turns
        self._recent = Newest[int, _Announcement](_MOST_RECENT)
        self._numbers = itertools.count(1)
        self._reliable = Newest[int, tuple[float, bytes]](_MOST_RELIABLE)
        self._received = Newest[GlobalId, None](_MOST_RECEIVED)
        self._tasks = Tasks()
        self._others: set[tuple[bytes, int]] = set()
        self._joined_at = math.inf
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(_HostMessage)
        self._messages = msgspec.msgpack.Decoder(BusMessage)
        self._claims = msgspec.msgpack.Decoder(TurnClaim)
        self._callback: Callable[[BusMessage], None] = lambda _: None

    def receive(self, callback: Callable[[BusMessage], None]) -> None:
        """Calls ``callback`` with each message of another host from now on."""
        self._callback = callback
        self._start(self._channel.run(self._on_data, self._on_joined))

    def send(self, message: BusMessage) -> None:
        """Sends a message to all other hosts; it is lost if it is too large or sending fails."""
        if data := self._encoded(message):
            self._start(self._publish(data, tries=1, pause=_PAUSE))

    def send_reliably(self, message: BusMessage) -> None:
        """Sends a message; for a minute, it is sent again after a failure, and to hosts that join."""
        number = next(self._numbers)
        if data := self._encoded(message, number):
            self._reliable.put(number, (time.monotonic(), data))
            self._start(self._publish(data, tries=_RELIABLE_TRIES, pause=_RELIABLE_PAUSE))

    def announce(self, slot: Slot, turn: ActiveTurn) -> None:
        """Announces a turn to other hosts, which cancel the turns that it supersedes."""
        if not self._others and time.monotonic() - self._joined_at > _ANSWERED:
            return
        with contextlib.suppress(ValueError):  # a name that cannot be encoded
            claim = self._codec.encode(_SEALED_FOR, encoded_claim(turn.claim, _LARGEST_CLAIM))
            self._announce(_Announcement(*slot, turn.number, turn.entered_at, claim))

    async def deliver(self, message: BusMessage) -> None:
        """Sends a message and waits until the store has it; raises StoreError."""
        if data := self._encoded(message):
            await self._channel.publish("", data)

    async def aclose(self) -> None:
        """Cancels what is being sent, says that this process ends, and closes all connections."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_FAREWELL):
                await self._channel.publish("", self._presence(_LEFT))
        await self._channel.aclose()

    def _announce(self, own: "_Announcement", *, again: bool = False) -> None:
        self._recent.put(own.number, own)
        key = own.key._replace(session=self._names.encrypted(*own.key)) if self._names else own.key
        start = _Start(key, own.pipeline, own.number, again)
        data = self._encoder.encode(_HostMessage(*self._own, own.claim, start))
        self._start(
            self._publish(data, tries=_TRIES, pause=_PAUSE, topic=own.key.session, since=own.entered_at)
        )

    def _encoded(self, message: BusMessage, number: int = 0) -> bytes | None:
        with contextlib.suppress(OverflowError, ValueError):  # it cannot be encoded
            body = self._codec.encode(_SEALED_FOR, self._encoder.encode(message))
            data = self._encoder.encode(_HostMessage(*self._own, body, number=number))
            return data if len(data) <= self._channel.largest else None
        return None

    async def _publish(
        self, data: bytes, *, tries: int, pause: float, topic: str = "", since: float = math.inf
    ) -> None:
        for _ in range(tries):
            age = max(0.0, time.monotonic() - since)
            try:
                return await self._channel.publish(topic, data, age=age)
            except StoreError:
                await asyncio.sleep(pause)
            except ValueError:  # too large
                return None
        if tries == _RELIABLE_TRIES:
            _log.error("Other hosts may still have data that was deleted here")
        return None

    def _on_joined(self) -> None:
        self._joined_at = time.monotonic()
        self._say(_JOINED if self._others else _ALONE)
        if self._others:
            self._announce_all()

    def _presence(self, presence: int) -> bytes:
        return self._encoder.encode(_HostMessage(*self._own, presence=presence))

    def _say(self, presence: int) -> None:
        self._start(self._publish(self._presence(presence), tries=_PRESENCE_TRIES, pause=_RELIABLE_PAUSE))

    def _announce_all(self) -> None:
        # Also turns that have ended, since hosts with turns that they superseded may have been unreachable.
        for own in tuple(self._recent.values()):
            self._announce(own, again=True)
        for slot, turn in self._turns:
            if turn.number not in self._recent:
                self.announce(slot, turn)

    def _on_data(self, at: float, data: bytes) -> None:
        # Data in another format, or encrypted with other keys, is ignored.
        with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError, Unreadable, TurnkeeperError):
            message = self._decoder.decode(data)
            is_others = message.host != self._own[0]
            if is_others:
                self._on_presence(message)
            if message.start:
                self._on_start(at, message, message.start)
            elif is_others and message.body:
                id_ = message.host, message.process, message.number
                if id_ in self._received:
                    return
                if message.number:
                    self._received.put(id_, None)
                self._callback(self._messages.decode(self._codec.decode(_SEALED_FOR, message.body)))

    def _on_presence(self, message: _HostMessage) -> None:
        other = message.host, message.process
        if not message.body and message.presence == _LEFT:
            self._others.discard(other)
            return
        is_news, is_first = other not in self._others, not self._others
        has_come = not message.body and message.presence in {_ALONE, _JOINED}
        self._others.add(other)
        if has_come and (is_news or message.presence == _ALONE):
            self._say(_HERE)
        if is_first:
            self._announce_all()
        if has_come:
            since = time.monotonic() - _RELIABLE_TRIES * _RELIABLE_PAUSE
            for at, data in tuple(self._reliable.values()):
                if at > since:
                    self._start(self._publish(data, tries=_TRIES, pause=_PAUSE))

    def _on_start(self, at: float, message: _HostMessage, start: _Start) -> None:
        key = start.key
        if self._names:
            key = key._replace(session=self._names.decrypted(key.session))
        slot = key, start.pipeline
        id_ = message.host, message.process, start.number
        if (message.host, message.process) == self._own:
            self._turns.set_order(slot, id_, at)
        elif message.host != self._own[0]:
            if self._turns.has(slot):
                claim = self._claims.decode(self._codec.decode(_SEALED_FOR, message.body))
                # The other host may have had no turn of this slot when these were announced.
                for turn in self._turns.contend(slot, Rival(id_, at, claim)):
                    self.announce(slot, turn)
            if start.again:
                for own in tuple(self._recent.values()):
                    if (own.key, own.pipeline) == slot:
                        self._announce(own)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(work).add_done_callback(retrieve_exception)


async def notify_servers(address: ChannelAddress, message: BusMessage) -> None:
    """Sends a message to all servers of a store, from another program; raises StoreError."""
    bus = HostBus(address, os.urandom(8), ActiveTurns())
    try:
        await bus.deliver(message)
    finally:
        await bus.aclose()
