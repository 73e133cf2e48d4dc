"""Sessions that this process wrote last, as values beside their bytes: equal bytes need not be decoded."""

import asyncio
from typing import Final, NamedTuple

from proxy.memory.session import Session, decode
from proxy.memory.store import Held, Key, Listed, Put, Store

_MOST: Final = 32
_LASTING: Final = 60.0


class Written(NamedTuple):
    """A session, its bytes, and when they were written, in the loop's time."""

    blob: bytes
    session: Session
    at: float


class Recent:
    """Another store, and the newest few sessions that were written to it, for a minute each.

    What is read counts: a session that was written elsewhere since has other bytes. ``rounds`` is after how
    many rounds of the loop a question is on its way, so that whoever asked may go on with what he knows; 0 is
    where nobody has to wait.
    """

    def __init__(self, store: Store, *, rounds: int = 0, lasting: float = _LASTING) -> None:
        self.rounds = rounds
        # As they are: a call passes through here, and each step on its way is heard.
        self.read = store.read
        self.write = store.write
        self._store = store
        self._lasting = lasting
        self._written: dict[Key, Written] = {}
        self._bell: asyncio.TimerHandle | None = None

    def last(self, key: Key) -> Written | None:
        """What was written last."""
        return self._written.get(key)

    def opened(self, key: Key, held: Held | None) -> tuple[Session, int]:
        """The session that was read, and its version; raises msgspec.DecodeError where its bytes are none."""
        if held is None:
            return Session(), 0
        known = self._written.get(key)
        own = known.session if known is not None and known.blob == held.blob else decode(held.blob)
        return own, held.version

    def keep(self, key: Key, blob: bytes, session: Session) -> None:
        """Takes in what was written."""
        loop = asyncio.get_running_loop()
        self._written.pop(key, None)
        self._written[key] = Written(blob, session, loop.time())
        if len(self._written) > _MOST:
            del self._written[next(iter(self._written))]
        if self._bell is None:
            self._bell = loop.call_later(self._lasting, self._sweep)

    async def replace(self, key: Key, put: Put) -> bool:
        """As the store does; what is known of the session goes."""
        self._written.pop(key, None)
        return await self._store.replace(key, put)

    async def cold(self, key: Key, *, start: int = 0, limit: int = 1000) -> list[bytes]:
        """As the store does."""
        return await self._store.cold(key, start=start, limit=limit)

    async def deleted(self, key: Key) -> float | None:
        """As the store does."""
        return await self._store.deleted(key)

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[Listed]:
        """As the store does."""
        return await self._store.list(tenant, after=after, limit=limit)

    async def ping(self) -> None:
        """As the store does."""
        await self._store.ping()

    async def delete(self, key: Key) -> bool:
        """As the store does; what is known of the session goes."""
        self._written.pop(key, None)
        return await self._store.delete(key)

    async def aclose(self) -> None:
        """As the store does; nothing is known any more."""
        if self._bell:
            self._bell.cancel()
        self._written.clear()
        await self._store.aclose()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() - self._lasting
        self._written = {key: known for key, known in self._written.items() if known.at > due}
        self._bell = loop.call_later(self._lasting, self._sweep) if self._written else None
