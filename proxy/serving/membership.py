"""One process among several: what it tells the others, and what it does when they tell it something."""

import asyncio
import contextlib
import os
import signal
import time
from typing import Final

import msgspec

from proxy.app import App
from proxy.serving.neighbours import LARGEST, Entered, ForgottenNote, Looking, Neighbours, Note, Turned
from proxy.turn.active import Asked, Seat

_EVERY: Final = 1.0
_LOOKING_FOR: Final = 3.0
# More than one is to find room.
_MOST_SHOWN: Final = LARGEST // 2


class Membership:
    """An application's part in a crew. It ends with the first process, whose end ``lifeline`` tells."""

    def __init__(self, app: App, neighbours: Neighbours, lifeline: int) -> None:
        self._app = app
        self._neighbours = neighbours
        self._lifeline = lifeline
        self._encoder = msgspec.msgpack.Encoder()
        self._asked = msgspec.msgpack.Decoder(Asked)

    async def keep(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._lifeline, self._orphaned)
        self._neighbours.listen(self._hear)
        self._app.in_flight.tell = self._entered
        self._app.audience.others = lambda account: self._neighbours.tell(Turned(account))
        self._app.traces.others = lambda *whose: self._neighbours.insist(ForgottenNote(*whose))
        self._app.place = self._neighbours.place
        while True:
            self._app.metrics.publish()
            if self._app.feed.watched:
                self._neighbours.tell(Looking())
            await asyncio.sleep(_EVERY)

    def _orphaned(self) -> None:
        asyncio.get_running_loop().remove_reader(self._lifeline)
        os.kill(os.getpid(), signal.SIGTERM)

    def _entered(self, seat: Seat, at: float, asked: Asked) -> None:
        key, pipeline = seat
        self._neighbours.tell(Entered(key, pipeline, at, self._shown(asked)))

    def _shown(self, asked: Asked) -> msgspec.Raw:
        """All of it; less of what is long, or holds a number that is too large for any note."""
        with contextlib.suppress(OverflowError):
            whole = self._encoder.encode(asked)
            if len(whole) <= _MOST_SHOWN:
                return msgspec.Raw(whole)
        return msgspec.Raw(self._encoder.encode(asked.shortened()))

    def _hear(self, note: Note) -> None:
        if isinstance(note, Turned):
            self._app.audience.heard(note.account)
        elif isinstance(note, ForgottenNote):
            self._app.traces.let_go(note.tenant, session=note.session, user=note.user)
        elif isinstance(note, Looking):
            self._app.audience.watched_until = time.monotonic() + _LOOKING_FOR
        else:
            seat = note.key, note.pipeline
            self._app.in_flight.overtaken(seat, note.at, lambda: self._asked.decode(note.asked))
