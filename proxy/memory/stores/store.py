"""A place where sessions are kept: a handful of methods, one contract, several drivers."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

TOMBSTONE_SECONDS: Final = 900.0
"""For how many seconds at least a deletion is remembered."""
CLOCK_TOLERANCE: Final = 5.0
"""How far clocks may be apart, in seconds. What is further ahead than this was written before a clock was set
back, and says nothing about what came first."""
KEEP_EXPIRY: Final = -math.inf
"""The ``ttl`` of a write that leaves the expiry as it is: nobody has spoken."""
BACKGROUND_DEADLINE: Final = 5.0
"""Seconds that whatever no call waits for may take: ``replace``, ``cold``, ``delete``, ``list``, and more."""


class Key(NamedTuple):
    """Whose session: an id means nothing without its tenant."""

    tenant: str
    session: str


class StoredBlob(NamedTuple):
    """A session's hot part as bytes, and the version that a write must name to replace it.

    A version is a number above 0 that names one state of one session for good: no later write has it again,
    not even of a session that was deleted or expired and was made anew.
    """

    blob: bytes
    version: int


class ListedSession(NamedTuple):
    """One line of a list of sessions. ``updated`` is in seconds since 1970."""

    session: str
    updated: float
    size: int


class BlobWrite(NamedTuple):
    """What a write brings.

    ``version`` is the one that was read, 0 for a session that is not there yet. The session expires ``ttl``
    seconds later; ``KEEP_EXPIRY`` leaves that as it is. ``at`` is when what is written arrived, in seconds
    since 1970; ``replace`` does not ask for it. A ``background``
    write may take as long as a list.
    """

    blob: bytes
    version: int
    ttl: float
    cold: Sequence[bytes] = ()
    at: float = math.inf
    background: bool = False


class Store(Protocol):
    """Sessions by key. Every method may raise StoreError, and none waits longer than its driver's time-out.

    Any text but an empty one is an id. What has expired, or belongs to another tenant, is not there. Whoever
    stops waiting for a write, a time-out of his own included, does not stop it.
    """

    async def read(self, key: Key, *, background: bool = False) -> StoredBlob | None:
        """The hot part: one round trip, whatever the session's length.

        ``background`` is for whoever keeps no call waiting: he has as long as for a list.
        """
        ...

    async def write(self, key: Key, put: BlobWrite) -> bool:
        """Replaces the hot part and appends to the cold part, both or neither, and renews the expiry.

        False, and nothing is changed, where somebody else has written since ``put.version`` was read, or the
        session has expired. True once it is durable; who reads in the same process sees it before.

        Raises SessionDeleted, and changes nothing, where the session was deleted after ``put.at``, even if
        there is a new one by now.
        """
        ...

    async def replace(self, key: Key, put: BlobWrite) -> bool:
        """As ``write``, but for the cold part, which is replaced as well: all in one step, or nothing.

        For what no call waits for.
        """
        ...

    async def cold(self, key: Key, *, start: int = 0, limit: int = 1000) -> list[bytes]:
        """The cold part in the order in which it was appended, from the entry at index ``start`` on."""
        ...

    async def delete(self, key: Key) -> bool:
        """Removes both parts, and remembers when; whether there was anything."""
        ...

    async def deleted(self, key: Key) -> float | None:
        """When the session was deleted last, in seconds since 1970, where that is still remembered.

        There may be a new one by now.
        """
        ...

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[ListedSession]:
        """A tenant's sessions in the order of their ids' code points, those behind ``after`` first."""
        ...

    async def ping(self) -> None:
        """Returns if a turn could be written now."""
        ...

    async def aclose(self) -> None:
        """What was accepted is durable; then everything is closed, and further calls raise StoreError."""
        ...


class Owner(NamedTuple):
    """A person; where that is empty, the tenant: what it owns itself, all its persons may find."""

    tenant: str
    user: str = ""
