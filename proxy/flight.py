"""The turns that are being answered, and what becomes of one whose place a newer one takes."""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType

from proxy.edge.reply import Reply
from proxy.errors import Superseded
from proxy.memory.store import Key
from proxy.supersession import Asked, supersedes
from proxy.wire import Call

Seat = tuple[Key, str]
"""A session, and the pipeline that it talks through."""


class InFlight:
    """One process's turns by session and pipeline; what has no session is never among them.

    ``tell``, once there are other processes, is told of each turn that enters, a moment later.
    """

    def __init__(self) -> None:
        self.tell: Callable[[Seat, float, Asked], None] | None = None
        self._flights: dict[Seat, list[Flight]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._flights.values()))

    def turn(self, seat: Seat | None, call: Call, reply: Reply) -> "Flight":
        """A turn of the current task, in flight while it is entered."""
        return Flight(self, seat, call, reply)

    def enter(self, seat: Seat, flight: "Flight") -> None:
        """Takes a turn in; those that it supersedes are cancelled."""
        others = self._flights.setdefault(seat, [])
        for other in others:
            if other.open and supersedes(flight.asked, other.asked):
                other.cancel()
        others.append(flight)
        if self.tell is not None:
            asyncio.get_running_loop().call_soon(self.tell, seat, flight.at, flight.asked)

    def overtaken(self, seat: Seat, at: float, asked: Callable[[], Asked]) -> None:
        """A turn has entered elsewhere; what it supersedes of those that entered here before is cancelled."""
        earlier = [flight for flight in self._flights.get(seat, ()) if flight.open and flight.at < at]
        newer = asked() if earlier else None
        for flight in earlier:
            if newer is not None and supersedes(newer, flight.asked):
                flight.cancel()

    def leave(self, seat: Seat, flight: "Flight") -> None:
        """Lets a turn go."""
        left = self._flights[seat]
        left.remove(flight)
        if not left:
            del self._flights[seat]


class Flight:
    """One turn, from when it was read until it is answered. Leaving it raises Superseded where it was."""

    def __init__(self, among: InFlight, seat: Seat | None, call: Call, reply: Reply) -> None:
        self.asked = Asked.of(call)
        self.at = time.monotonic()
        self._among = among
        self._seat = seat
        self._reply = reply
        self._superseded = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        self._task = task
        self._cancelled_before = task.cancelling()
        if self._seat is not None:
            self._among.enter(self._seat, self)

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        if self._seat is not None:
            self._among.leave(self._seat, self)
        if self._superseded and self._alone() and kind is asyncio.CancelledError:
            raise Superseded("A newer request for the same turn has taken this one's place.") from None

    @property
    def open(self) -> bool:
        """Whether it may still be cancelled; not so once its last bytes are on their way."""
        return not (self._superseded or self._reply.ending)

    def cancel(self) -> None:
        """Ends the turn in favour of a newer one."""
        self._superseded = True
        self._task.cancel()

    def _alone(self) -> bool:
        """Takes our own cancellation back; whether no other is left, of a hang-up or of the server's end."""
        return self._task.uncancel() <= self._cancelled_before
