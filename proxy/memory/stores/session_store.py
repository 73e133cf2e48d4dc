"""A store that does not cost every call its deadline while it is dead or slow."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

from proxy.memory.errors import StoreError
from proxy.memory.session import Session, decode
from proxy.memory.stores.codec import Codec
from proxy.memory.stores.store import BlobWrite, Key, ListedSession, Store, StoredBlob

T = TypeVar("T")
_SHORTEST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 1.0
_TOLD_AFTER: Final = 5.0
_log: Final = logging.getLogger("turnkeeper")
_NEVER = object()
Meter = Callable[[str, str, float], None]
"""Told of an operation: its name, how it ended (done, lost or failed), and its seconds."""
_CACHE_SIZE: Final = 32
_CACHE_SECONDS: Final = 60.0


Ask = Callable[[Store], Awaitable[T]]


class Guard:
    """Another store, left alone by calls for as long as asking it costs time.

    A read or a write that fails after more than a quarter of ``deadline`` seconds shuts the store off:
    whoever comes then is refused at once. One probe after another asks it in the background, at once and then
    after pauses of 0.1 s growing to 1 s; an answer within ``deadline`` opens it again, and so does a refusal
    at once, since calls can bear what costs nothing.

    ``background`` is the same place for whoever has seconds. As long as that answers, all that no call waits
    for goes there while the store is shut off, writes among it: a place that is always slow is written, and
    read by no call. Else what has leisure waits up to a second for a probe.
    """

    def __init__(self, store: Store, *, deadline: float, background: Store | None = None) -> None:
        self._store = store
        self._background = background
        self._deadline = deadline
        self._patience = deadline / 4
        self._probe: asyncio.Task[None] | None = None
        self._bears = False
        self._told = False

    @property
    def shut(self) -> bool:
        """Whether calls are refused."""
        return self._probe is not None and not self._probe.done()

    async def read(self, key: Key, *, background: bool = False) -> StoredBlob | None:
        """As the store does."""
        if background:
            return await self._at_leisure(lambda store: store.read(key, background=True))
        self._check()
        began = _now()
        try:
            return await self._store.read(key)
        except StoreError:
            self._failed(began)
            raise

    async def write(self, key: Key, put: BlobWrite) -> bool:
        """As the store does."""
        way = self._at_leisure if put.background else self._behind
        return await way(lambda store: store.write(key, put))

    async def replace(self, key: Key, put: BlobWrite) -> bool:
        """As the store does."""
        return await self._at_leisure(lambda store: store.replace(key, put))

    async def cold(self, key: Key, *, start: int = 0, limit: int = 1000) -> list[bytes]:
        """As the store does."""
        return await self._at_leisure(lambda store: store.cold(key, start=start, limit=limit))

    async def delete(self, key: Key) -> bool:
        """As the store does."""
        return await self._at_leisure(lambda store: store.delete(key))

    async def deleted(self, key: Key) -> float | None:
        """As the store does."""
        return await self._behind(lambda store: store.deleted(key))

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[ListedSession]:
        """As the store does."""
        return await self._at_leisure(lambda store: store.list(tenant, after=after, limit=limit))

    async def ping(self) -> None:
        """As the store does."""
        await self._timed(lambda store: store.ping())

    async def aclose(self) -> None:
        """Ends the probe, then closes the store."""
        if self._probe:
            self._probe.cancel()
            await asyncio.wait({self._probe})
        await asyncio.gather(*(store.aclose() for store in (self._store, self._background) if store))

    async def _behind(self, ask: Ask[T]) -> T:
        """For what goes on behind a call, by the quick way as long as that is open."""
        if self.shut and self._bears and self._background:
            return await ask(self._background)
        return await self._timed(ask)

    async def _at_leisure(self, ask: Ask[T]) -> T:
        """What takes long says little of the store: there may be much to tell."""
        if self.shut and not self._bears and self._probe:
            await asyncio.wait({self._probe}, timeout=_LONGEST_PAUSE)
        if not self._bears:
            self._check()
        return await ask(self._background or self._store)

    async def _timed(self, ask: Ask[T]) -> T:
        self._check()
        began = _now()
        try:
            return await ask(self._store)
        except StoreError:
            self._failed(began)
            raise

    def _failed(self, began: float) -> None:
        if self._is_dear(began) and not self.shut:
            self._probe = asyncio.create_task(self._watch())

    def _check(self) -> None:
        if self.shut:
            raise StoreError("the store did not answer within memory.deadline, and is asked again in a while")

    def _is_dear(self, began: float) -> bool:
        return _now() - began > self._patience

    async def _watch(self) -> None:
        """Until it answers in time."""
        trial = asyncio.create_task(self._try(self._background)) if self._background else None
        pause, self._told = _SHORTEST_PAUSE, False
        try:
            while not await self._answers():
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            self._bears = False
            if trial:
                trial.cancel()
        if self._told:
            _log.warning("Memory answers within memory.deadline again")

    async def _answers(self) -> bool:
        began = _now()
        try:
            await self._store.ping()
        except StoreError:
            return not self._is_dear(began)
        return _now() - began <= self._deadline

    async def _try(self, background: Store) -> None:
        """Finds out, again and again, whether it answers whoever has leisure; the log is told if so."""
        late_at = _now() + _TOLD_AFTER
        while True:
            self._bears = await _takes(background)
            if self._bears and not self._told and _now() > late_at:
                self._told = True
                _log.warning(
                    "Memory takes longer than memory.deadline (%.0f ms): turns are written, and no call knows"
                    " what was said before",
                    self._deadline * 1000,
                )
            await asyncio.sleep(_LONGEST_PAUSE)


async def _takes(store: Store) -> bool:
    try:
        await store.ping()
    except StoreError:
        return False
    return True


def _now() -> float:
    return asyncio.get_running_loop().time()


class Metered:
    """Another store. An operation is ``lost`` where somebody else wrote first, ``failed`` with StoreError."""

    def __init__(self, store: Store, meter: Meter) -> None:
        self._store = store
        self._meter = meter

    async def read(self, key: Key, *, background: bool = False) -> StoredBlob | None:
        """As the store does."""
        began = time.perf_counter()
        outcome = "failed"
        try:
            held = await self._store.read(key, background=background)
            outcome = "done"
        finally:
            self._meter("read", outcome, time.perf_counter() - began)
        return held

    async def write(self, key: Key, put: BlobWrite) -> bool:
        """As the store does."""
        write = self._store.write(key, put)
        return await self._metered("write", write, lost=False)

    async def replace(self, key: Key, put: BlobWrite) -> bool:
        """As the store does."""
        replace = self._store.replace(key, put)
        return await self._metered("replace", replace, lost=False)

    async def cold(self, key: Key, *, start: int = 0, limit: int = 1000) -> list[bytes]:
        """As the store does."""
        return await self._metered("cold", self._store.cold(key, start=start, limit=limit))

    async def delete(self, key: Key) -> bool:
        """As the store does."""
        return await self._metered("delete", self._store.delete(key))

    async def deleted(self, key: Key) -> float | None:
        """As the store does."""
        return await self._metered("deleted", self._store.deleted(key))

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[ListedSession]:
        """As the store does."""
        return await self._metered("list", self._store.list(tenant, after=after, limit=limit))

    async def ping(self) -> None:
        """As the store does."""
        await self._metered("ping", self._store.ping())

    async def aclose(self) -> None:
        """As the store does."""
        await self._store.aclose()

    async def _metered(self, operation: str, asked: Awaitable[T], *, lost: object = _NEVER) -> T:
        began = time.perf_counter()
        outcome = "failed"
        try:
            result = await asked
            outcome = "lost" if result is lost else "done"
        finally:
            self._meter(operation, outcome, time.perf_counter() - began)
        return result


class CodedStore:
    """Another store, at whose edge everything is encoded; ids and times are not."""

    def __init__(self, store: Store, codec: Codec) -> None:
        self._store = store
        self._codec = codec

    async def read(self, key: Key, *, background: bool = False) -> StoredBlob | None:
        """The hot part, decoded."""
        held = await self._store.read(key, background=background)
        return None if held is None else StoredBlob(self._codec.decode(key, held.blob), held.version)

    async def write(self, key: Key, put: BlobWrite) -> bool:
        """Both parts, encoded."""
        return await self._store.write(key, self._encoded(key, put))

    async def replace(self, key: Key, put: BlobWrite) -> bool:
        """Both parts, encoded on a thread: they may be large."""
        return await self._store.replace(key, await asyncio.to_thread(self._encoded, key, put))

    async def cold(self, key: Key, *, start: int = 0, limit: int = 1000) -> list[bytes]:
        """The cold part, decoded on a thread."""
        found = await self._store.cold(key, start=start, limit=limit)
        return await asyncio.to_thread(lambda: [self._codec.decode(key, blob) for blob in found])

    async def delete(self, key: Key) -> bool:
        """As the store has it."""
        return await self._store.delete(key)

    async def deleted(self, key: Key) -> float | None:
        """As the store has it."""
        return await self._store.deleted(key)

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[ListedSession]:
        """As the store has it: sizes are those of the encoded bytes."""
        return await self._store.list(tenant, after=after, limit=limit)

    async def ping(self) -> None:
        """As the store has it."""
        await self._store.ping()

    async def aclose(self) -> None:
        """As the store has it."""
        await self._store.aclose()

    def _encoded(self, key: Key, put: BlobWrite) -> BlobWrite:
        blob, *cold = [self._codec.encode(key, blob) for blob in (put.blob, *put.cold)]
        return put._replace(blob=blob, cold=cold)


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

    def __init__(self, store: Store, *, rounds: int = 0, lasting: float = _CACHE_SECONDS) -> None:
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

    def opened(self, key: Key, held: StoredBlob | None) -> tuple[Session, int]:
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
        if len(self._written) > _CACHE_SIZE:
            del self._written[next(iter(self._written))]
        if self._bell is None:
            self._bell = loop.call_later(self._lasting, self._sweep)

    async def replace(self, key: Key, put: BlobWrite) -> bool:
        """As the store does; what is known of the session goes."""
        self._written.pop(key, None)
        return await self._store.replace(key, put)

    async def cold(self, key: Key, *, start: int = 0, limit: int = 1000) -> list[bytes]:
        """As the store does."""
        return await self._store.cold(key, start=start, limit=limit)

    async def deleted(self, key: Key) -> float | None:
        """As the store does."""
        return await self._store.deleted(key)

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[ListedSession]:
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
