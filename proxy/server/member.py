"""Connects one server process to the other processes of its port and to the other hosts of its store."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

import msgspec

from proxy.observe.observation import TurnReport
from proxy.server.app import App
from proxy.server.bus import (
    LARGEST,
    BackgroundMessage,
    Bus,
    BusMessage,
    ErasureMessage,
    ReloadMessage,
    StartMessage,
    TurnMessage,
    WatchingMessage,
    encoded_claim,
    end_with_parent,
)
from proxy.server.hosts import HostBus
from proxy.turn.active import ActiveTurn, Slot, TurnClaim

_INTERVAL: Final = 1.0
_WATCHED_FOR: Final = 3.0
# In seconds. The turn's request to the model has been sent by then.
_HEAD_START: Final = 0.005


class BusMember:
    """Connects an application to the other processes by ``bus``, and to other hosts if the store can.

    ``host`` is the name of this host. The process ends with the first process, which closes ``lifeline``.
    ``on_reload`` is called when another host has reloaded its configuration.
    """

    def __init__(
        self, app: App, bus: Bus, lifeline: int, *, host: bytes, on_reload: Callable[[], None] | None = None
    ) -> None:
        self._app = app
        self._bus = bus
        self._lifeline = lifeline
        self._host = host
        self._on_reload = on_reload
        self._hosts: HostBus | None = None
        self._watched_until = 0.0
        self._decoder = msgspec.msgpack.Decoder(TurnClaim)

    async def run(self) -> None:
        """Sends and receives messages until it is cancelled."""
        app, bus = self._app, self._bus
        end_with_parent(self._lifeline, self._on_orphaned)
        bus.receive(self._on_message)
        if bus.has_others:
            app.process_name = bus.name
        app.reporter.broadcast = self._send_turn
        app.traces.broadcast = self._send_erasure
        try:
            while True:
                await self._follow_channel()
                if bus.has_others:
                    app.metrics.publish()
                if app.feed.subscribers:
                    bus.send(WatchingMessage())
                    if self._hosts:
                        self._hosts.send(WatchingMessage())
                await asyncio.sleep(_INTERVAL)
        finally:
            if self._hosts:
                await self._hosts.aclose()

    def reloaded(self) -> None:
        """Asks other hosts to check their configuration for changes."""
        if self._hosts:
            self._hosts.send(ReloadMessage())

    async def _follow_channel(self) -> None:
        """Opens the channel of the current configuration, and closes the former one."""
        address, hosts = self._app.runtime.channel, self._hosts
        has_others = self._bus.has_others or address is not None
        self._app.active_turns.publish = self._announce if has_others else None
        if address == (hosts.address if hosts else None):
            return
        self._hosts = None
        if hosts:
            await hosts.aclose()
        if address:
            self._hosts = HostBus(address, self._host, self._app.active_turns)
            self._hosts.receive(self._on_message_of_host)

    def _on_orphaned(self) -> None:
        self._app.orphaned = True

    def _send_turn(self, report: Callable[[], TurnReport]) -> None:
        is_watched = self._hosts is not None and self._watched_until > time.monotonic()
        if not (self._bus.has_others or is_watched):
            return
        message = TurnMessage(report())
        self._bus.send(message)
        if self._hosts and is_watched:
            self._hosts.send(message)

    def _send_erasure(self, tenant: str, session: str | None, user: str | None) -> None:
        message = ErasureMessage(tenant, session, user)
        self._bus.send_reliably(message)
        if self._hosts:
            self._hosts.send_reliably(message)

    def _announce(self, slot: Slot, turn: ActiveTurn) -> None:
        key, pipeline = slot
        if self._bus.has_others:
            claim = encoded_claim(turn.claim, LARGEST // 2)
            self._bus.send(StartMessage(key, pipeline, turn.entered_at, msgspec.Raw(claim)))
        if self._hosts:
            asyncio.get_running_loop().call_later(_HEAD_START, self._hosts.announce, slot, turn)

    def _on_message(self, message: BusMessage) -> None:
        app = self._app
        match message:
            case TurnMessage(report):
                app.reporter.receive(report)
            case ErasureMessage(tenant, session, user):
                app.traces.remove(tenant, session=session, user=user)
            case WatchingMessage():
                app.reporter.watched_until = time.monotonic() + _WATCHED_FOR
            case BackgroundMessage(failures):
                app.background_failures = failures
            case StartMessage(key, pipeline, at, claim):
                app.active_turns.cancel_superseded((key, pipeline), at, lambda: self._decoder.decode(claim))

    def _on_message_of_host(self, message: BusMessage) -> None:
        match message:
            case WatchingMessage():
                self._watched_until = time.monotonic() + _WATCHED_FOR
            case ReloadMessage():
                if self._on_reload:
                    self._on_reload()
        self._on_message(message)
