"""A store that does not cost every call its deadline while it is dead or slow."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from proxy.memory.faults import StoreError
from proxy.memory.store import Held, Key, Listed, Put, Store

T = TypeVar("T")
Ask = Callable[[Store], Awaitable[T]]

_SHORTEST: Final = 0.1
_LONGEST: Final = 1.0
_TOLD_AFTER: Final = 5.0
_log: Final = logging.getLogger("turnkeeper")


class Guard:
    """Another store, left alone by calls for as long as asking it costs time.

    A read or a write that fails after more than a quarter of ``deadline`` seconds shuts the store off:
    whoever comes then is refused at once. One probe after another asks it in the background, at once and then
    after pauses of 0.1 s growing to 1 s; an answer within ``deadline`` opens it again, and so does a refusal
    at once, since calls can bear what costs nothing.

    ``leisurely`` is the same place for whoever has seconds. As long as that answers, all that no call waits
    for goes there while the store is shut off, writes among it: a place that is always slow is written, and
    read by no call. Else what has leisure waits up to a second for a probe.
    """

    def __init__(self, store: Store, *, deadline: float, leisurely: Store | None = None) -> None:
        self._store = store
        self._leisurely = leisurely
        self._deadline = deadline
        self._patience = deadline / 4
        self._probe: asyncio.Task[None] | None = None
        self._bears = False
        self._told = False

    @property
    def shut(self) -> bool:
        """Whether calls are refused."""
        return self._probe is not None and not self._probe.done()

    async def read(self, key: Key, *, leisure: bool = False) -> Held | None:
        """As the store does."""
        if leisure:
            return await self._at_leisure(lambda store: store.read(key, leisure=True))
        self._check()
        began = _now()
        try:
            return await self._store.read(key)
        except StoreError:
            self._failed(began)
            raise

    async def write(self, key: Key, put: Put) -> bool:
        """As the store does."""
        way = self._at_leisure if put.leisure else self._behind
        return await way(lambda store: store.write(key, put))

    async def replace(self, key: Key, put: Put) -> bool:
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

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[Listed]:
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
        await asyncio.gather(*(store.aclose() for store in (self._store, self._leisurely) if store))

    async def _behind(self, ask: Ask[T]) -> T:
        """For what goes on behind a call, by the quick way as long as that is open."""
        if self.shut and self._bears and self._leisurely:
            return await ask(self._leisurely)
        return await self._timed(ask)

    async def _at_leisure(self, ask: Ask[T]) -> T:
        """What takes long says little of the store: there may be much to tell."""
        if self.shut and not self._bears and self._probe:
            await asyncio.wait({self._probe}, timeout=_LONGEST)
        if not self._bears:
            self._check()
        return await ask(self._leisurely or self._store)

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
        trial = asyncio.create_task(self._try(self._leisurely)) if self._leisurely else None
        pause, self._told = _SHORTEST, False
        try:
            while not await self._answers():
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST)
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

    async def _try(self, leisurely: Store) -> None:
        """Finds out, again and again, whether it answers whoever has leisure; the log is told if so."""
        late_at = _now() + _TOLD_AFTER
        while True:
            self._bears = await _takes(leisurely)
            if self._bears and not self._told and _now() > late_at:
                self._told = True
                _log.warning(
                    "Memory takes longer than memory.deadline (%.0f ms): turns are written, and no call knows"
                    " what was said before",
                    self._deadline * 1000,
                )
            await asyncio.sleep(_LONGEST)


async def _takes(store: Store) -> bool:
    try:
        await store.ping()
    except StoreError:
        return False
    return True


def _now() -> float:
    return asyncio.get_running_loop().time()
