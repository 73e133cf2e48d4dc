"""What this process is about to write to a database file, and what it wrote there last."""

import asyncio
import math
from functools import partial
from typing import Final, NamedTuple, TypeVar

from proxy.memory.faults import Deleted
from proxy.memory.sql.elsewhere import Elsewhere
from proxy.memory.store import Held, Key

T = TypeVar("T")

_MOST_HELD: Final = 32
_MOST_STATES: Final = 500


class State(NamedTuple):
    """The version that a write must name, 0 where there is no session, the last deletion, and the expiry."""

    version: int
    deleted: float
    expires: float


NOWHERE: Final = State(0, -math.inf, -math.inf)


class Pending(NamedTuple):
    """What a session is about to be: a batch in flight, read as if it were committed."""

    held: Held | None
    expires: float
    deleted: float

    def at(self, now: float) -> Held | None:
        """What will be held."""
        return self.held if self.expires > now else None

    def state(self, now: float) -> State:
        """What a write must name once it is committed."""
        held = self.at(now)
        return State(held.version if held else 0, self.deleted, self.expires)


class _Committed(NamedTuple):
    """What was written last of a session: what is held, as long as nobody else has written."""

    held: Held
    expires: float
    elsewhere: int


class OwnWrites:
    """Of the newest sessions that this process wrote, the newest few with all that they hold."""

    def __init__(self, elsewhere: Elsewhere) -> None:
        self._elsewhere = elsewhere
        self._pending: dict[Key, Pending] = {}
        self._committed: dict[Key, _Committed] = {}
        self._states: dict[Key, State] = {}

    def __bool__(self) -> bool:
        """Whether anything is in flight."""
        return bool(self._pending)

    def pending(self, key: Key) -> Pending | None:
        """What is in flight of a session."""
        return self._pending.get(key)

    def committed(self, key: Key, now: float) -> Held | None:
        """What is held, where it is sure that nobody else has written since."""
        last = self._committed.get(key)
        if last is None or last.expires <= now or last.elsewhere != self._elsewhere.unchanged():
            return None
        return last.held

    def state(self, key: Key, version: int, now: float) -> State | None:
        """The state that a write names, if it is our own last one; whether it stands, the commit tells."""
        state = self._states.get(key)
        return state if state is not None and state.version == version and state.expires > now else None

    def begun(self, key: Key, pending: Pending, outcome: "asyncio.Future[bool | Deleted]") -> None:
        """Takes in a write; what comes of it is told by its ``outcome``."""
        self._pending[key] = pending
        self._committed.pop(key, None)
        self._states.pop(key, None)
        outcome.add_done_callback(partial(self._landed, key, pending, self._elsewhere.count))

    def _landed(
        self, key: Key, pending: Pending, elsewhere: int, outcome: "asyncio.Future[bool | Deleted]"
    ) -> None:
        if self._pending.get(key) is not pending:
            return
        del self._pending[key]
        if pending.held is not None and _succeeded(outcome):
            _keep(self._committed, key, _Committed(pending.held, pending.expires, elsewhere), _MOST_HELD)
            _keep(self._states, key, pending.state(0), _MOST_STATES)


def _succeeded(outcome: "asyncio.Future[bool | Deleted]") -> bool:
    return not outcome.cancelled() and outcome.exception() is None and outcome.result() is True


def _keep(newest: dict[Key, T], key: Key, value: T, most: int) -> None:
    newest[key] = value
    if len(newest) > most:
        del newest[next(iter(newest))]
