"""What a store of sessions does, and the values that it takes and gives."""

import asyncio
import math
import os
from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple, Protocol

NEVER_DUE: Final = math.inf
"""The ``due`` of a write that leaves no background work."""
KEEP_EXPIRY: Final = -math.inf
"""The ``ttl`` of a write that leaves the expiry as it is: nothing was said."""
BACKGROUND_DEADLINE: Final = 5.0
"""Seconds that an operation may take that no call waits for: ``replace``, ``cold``, ``delete``, ``list``."""
TOMBSTONE_SECONDS: Final = 900.0
"""For how many seconds at least a deletion is remembered."""
CLOCK_TOLERANCE: Final = 5.0
"""How far clocks may be apart, in seconds. A time further ahead is from before a clock was set back, and says
nothing about what came first."""
_VERSIONS: Final = 2**53


class Key(NamedTuple):
    """A session of a tenant."""

    tenant: str
    session: str


class Owner(NamedTuple):
    """A user of a tenant; without a name, the tenant itself, whose own all its users may find."""

    tenant: str
    user: str = ""


class StoredBlob(NamedTuple):
    """A session's hot part as bytes, and the version that a write must name to replace it.

    A version is a number above 0 that names one state of one session for good: no later write has it again,
    not even of a session that was deleted or expired and was made anew.
    """

    blob: bytes
    version: int


class BlobWrite(NamedTuple):
    """A session's hot part to be written over ``version``, 0 where there is none yet.

    ``new_version`` is the version that is written, drawn by the driver where it is 0.
    ``cold`` goes to the cold part. The session expires after ``ttl`` seconds, with ``KEEP_EXPIRY`` when it
    would have. ``at`` is when what is written arrived, in seconds since 1970; ``replace`` ignores it. A
    ``background`` write may take as long as a list. ``due`` is from when on there may be background work on
    the session, in seconds since 1970.
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
    """A version that no state of a session has had.

    Versions that are counted would come again after an expiry or a failover, and those of ``random`` in each
    process in which somebody's filter sets its seed.
    """
    return int.from_bytes(os.urandom(8)) % _VERSIONS + 1  # as ``secrets`` draws, but in one step


class DueSession(NamedTuple):
    """A session that was taken for background work; ``lease`` names this one taking of it."""

    key: Key
    lease: str


class ListedSession(NamedTuple):
    """One line of a list of sessions. ``updated`` is in seconds since 1970."""

    session: str
    updated: float
    size: int


class KeptTurn(NamedTuple):
    """A turn for the store, which arrived ``age`` seconds ago; its bytes are encoded.

    ``names`` are hashes of its session and of its users, by which it is erased. Without ``content``, nothing
    of what was said is kept.
    """

    id: str
    age: float
    names: Sequence[str]
    report: bytes
    content: bytes


class Store(Protocol):
    """Sessions by key. Every method may raise StoreError, and none takes longer than its driver's time-out.

    Any text but an empty one is an id. What has expired, or belongs to another tenant, is not there. A write
    goes on when its caller stops waiting for it.
    """

    async def read(self, key: Key, *, background: bool = False) -> StoredBlob | None:
        """The hot part: one round trip, whatever the session's length.

        A ``background`` read may take as long as a list.
        """
        ...

    async def write(self, key: Key, put: BlobWrite) -> bool:
        """Replaces the hot part, appends to the cold part, and renews the expiry: all or nothing.

        False, and nothing is changed, where another writer was faster since ``put.version`` was read, or the
        session has expired. True once it is durable; reads of the same process see it before.

        Raises SessionDeleted, and changes nothing, where the session was deleted after ``put.at``, even if
        there is a new one by now.
        """
        ...

    async def replace(self, key: Key, put: BlobWrite) -> bool:
        """Replaces both parts, else as ``write``. No call waits for it."""
        ...

    async def cold(self, key: Key, *, start: int = 0, limit: int = 1000) -> list[bytes]:
        """The cold part in the order in which it was appended, from the entry at index ``start`` on."""
        ...

    async def delete(self, key: Key) -> bool:
        """Removes both parts and leaves a tombstone; whether there was anything."""
        ...

    async def deleted(self, key: Key) -> float | None:
        """When the session was deleted last, in seconds since 1970, while there is a tombstone.

        There may be a new one by now.
        """
        ...

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[ListedSession]:
        """A tenant's sessions in the order of their ids' code points, from the first after ``after`` on."""
        ...

    async def take_due(self, tenants: Sequence[str], *, limit: int, lease: float) -> Sequence[DueSession]:
        """Takes sessions whose ``due`` has come, which no other call gets for ``lease`` seconds.

        They are found by an index: sessions that are not due cost nothing. One that was written twice may be
        taken at the earlier time, and one that has just become due by a later call. What an older version of
        the driver wrote is due once; ``tenants`` are those whose sessions it may have to look for.
        """
        ...

    async def settle(self, session: DueSession, due: float) -> DueSession | None:
        """Sets when a session that was taken is due again; until then it stays taken, as the result says.

        ``None``, and nothing is changed, where the session was written or taken again since.
        """
        ...

    async def acquire(self, name: str, token: bytes, *, ttl: float, former: bytes = b"") -> bytes | None:
        """Takes a lease, or renews it, for ``ttl`` seconds; ``None``, or the token of its other holder.

        A lease that ``former`` has is taken over.
        """
        ...

    async def release(self, name: str, token: bytes) -> None:
        """Ends a lease that ``token`` has."""
        ...

    async def ping(self) -> None:
        """Returns if a turn could be written now."""
        ...

    async def aclose(self) -> None:
        """Closes the store once what it accepted is durable; later calls raise StoreError."""
        ...


async def all_sessions(store: Store, tenant: str, *, page: int = 100) -> AsyncIterator[ListedSession]:
    """All sessions of a tenant, as many at a time as a ``page`` has."""
    after = ""
    while sessions := await store.list(tenant, after=after, limit=page):
        for session in sessions:
            yield session
            await asyncio.sleep(0)  # a store in this process would hold up all calls
        after = sessions[-1].session
