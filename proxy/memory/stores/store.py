"""The interface of session stores, and the values that it uses."""

import asyncio
import math
import os
from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple, Protocol

NEVER_DUE: Final = math.inf
"""The ``due`` of a write after which no background work is left."""
KEEP_EXPIRY: Final = -math.inf
"""The ``ttl`` of a write without new turns, which does not change the expiry."""
BACKGROUND_DEADLINE: Final = 5.0
"""The time-out in seconds of background operations: ``replace``, ``cold``, ``delete``, ``list``."""
TOMBSTONE_SECONDS: Final = 900.0
"""For how many seconds a tombstone is stored at least."""
CLOCK_TOLERANCE: Final = 5.0
"""How far clocks may differ, in seconds. A time further in the future is from before a clock was set back and
does not order anything."""
_VERSIONS: Final = 2**53


class Key(NamedTuple):
    """The id of a session, within its tenant."""

    tenant: str
    session: str


class Owner(NamedTuple):
    """A user of a tenant; without a name, the tenant itself, whose data all its users may find."""

    tenant: str
    user: str = ""


class StoredBlob(NamedTuple):
    """A session's hot part as bytes, and the version that a write must name to replace it.

    A version is a number above 0 that identifies one state of one session. No later write uses it again, not
    even after the session was deleted or expired and created anew.
    """

    blob: bytes
    version: int


class BlobWrite(NamedTuple):
    """A hot part to replace the state with ``version``, which is 0 for a new session.

    ``new_version`` is the version of the new state; if it is 0, the driver draws one. ``cold`` is appended to
    the cold part. The session expires after ``ttl`` seconds; ``KEEP_EXPIRY`` does not change the expiry.
    ``at`` is when the written turn arrived, in seconds since 1970; ``replace`` ignores it. A ``background``
    write has the longer time-out. ``due`` is when background work on the session may be due, in seconds since
    1970.
    """

    blob: bytes
    version: int
    ttl: float
    cold: Sequence[bytes] = ()
    at: float = math.inf
    background: bool = False
    new_version: int = 0
    due: float = NEVER_DUE


def draw_version() -> int:
    """Returns a random version that no state of a session has had.

    Counted versions would repeat after an expiry or a failover, and those of ``random`` in processes where a
    filter sets its seed.
    """
    return int.from_bytes(os.urandom(8)) % _VERSIONS + 1  # as ``secrets`` draws, but in one step


class DueSession(NamedTuple):
    """A session that was taken for background work; ``lease`` is unique each time it is taken."""

    key: Key
    lease: str


class ListedSession(NamedTuple):
    """An item of a list of sessions. ``updated`` is in seconds since 1970, ``size`` in bytes."""

    session: str
    updated: float
    size: int


class KeptTurn(NamedTuple):
    """An encoded turn for the store, which arrived ``age`` seconds ago.

    ``names`` are hashes of its session and its users, by which it is erased. Without ``content``, no words
    of the turn are stored.
    """

    id: str
    age: float
    names: Sequence[str]
    report: bytes
    content: bytes


class Store(Protocol):
    """Sessions by key. Every method may raise StoreError, and none takes longer than its driver's time-out.

    An id is any text that is not empty. Expired sessions, and those of other tenants, do not exist. A write
    continues when its caller is cancelled.
    """

    async def read(self, key: Key, *, background: bool = False) -> StoredBlob | None:
        """Reads the hot part in one round trip, however long the session is.

        A ``background`` read has the longer time-out.
        """
        ...

    async def write(self, key: Key, put: BlobWrite) -> bool:
        """Replaces the hot part, appends to the cold part, and renews the expiry, atomically.

        Returns true once the write is durable; reads of the same process see it earlier. Returns false, and
        changes nothing, if another write came after ``put.version`` was read, or the session has expired.

        Raises SessionDeleted, and changes nothing, if the session was deleted after ``put.at``, even if there
        is a new one.
        """
        ...

    async def replace(self, key: Key, put: BlobWrite) -> bool:
        """Replaces both parts, otherwise like ``write``; no call waits for it."""
        ...

    async def cold(self, key: Key, *, start: int = 0, limit: int = 1000) -> list[bytes]:
        """Reads the cold part in the order of appending, from the entry at index ``start`` on."""
        ...

    async def delete(self, key: Key) -> bool:
        """Removes both parts and leaves a tombstone; returns whether there was a session."""
        ...

    async def deleted(self, key: Key) -> float | None:
        """Returns when the session was deleted last, in seconds since 1970; ``None`` without a tombstone.

        There may be a new session with the same id.
        """
        ...

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[ListedSession]:
        """Lists a tenant's sessions after ``after``, in the order of their ids' code points."""
        ...

    async def take_due(self, tenants: Sequence[str], *, limit: int, lease: float) -> Sequence[DueSession]:
        """Takes sessions that are due, which no other call gets for ``lease`` seconds.

        An index finds them, so sessions that are not due cost nothing. A session written twice may be
        taken at the earlier time, and one that has just become due by a later call. Sessions written by an
        older version of the driver are due once; ``tenants`` are those that may have such sessions.
        """
        ...

    async def settle(self, session: DueSession, due: float) -> DueSession | None:
        """Sets when a taken session is due again, and returns it with its new lease.

        Returns ``None``, and changes nothing, if the session was written or taken again since.
        """
        ...

    async def acquire(self, name: str, token: bytes, *, ttl: float, former: bytes = b"") -> bytes | None:
        """Takes or renews a lease for ``ttl`` seconds; returns ``None``, or the token of another holder.

        A lease with the token ``former`` is taken over.
        """
        ...

    async def release(self, name: str, token: bytes) -> None:
        """Ends a lease if ``token`` holds it."""
        ...

    async def ping(self) -> None:
        """Returns if a turn could be written now; else raises StoreError."""
        ...

    async def aclose(self) -> None:
        """Closes the store once all accepted writes are durable; later calls raise StoreError."""
        ...


async def all_sessions(store: Store, tenant: str, *, page: int = 100) -> AsyncIterator[ListedSession]:
    """Yields all sessions of a tenant, read in pages of ``page`` sessions."""
    after = ""
    while sessions := await store.list(tenant, after=after, limit=page):
        for session in sessions:
            yield session
            await asyncio.sleep(0)  # a store in this process would otherwise block all calls
        after = sessions[-1].session
