"""One session on its way into the archive: what it holds ready, and what has moved out of that."""

import logging

from proxy.memory.archive.moved import Settled, pages
from proxy.memory.archive.sql import Archive
from proxy.memory.errors import StoreError, Unreadable
from proxy.memory.session import Session
from proxy.memory.stores.store import Key, Store

_log = logging.getLogger("turnkeeper")


class Keeping:
    """Keeps sessions of a store in an archive, each as it stands."""

    def __init__(self, store: Store, archive: Archive) -> None:
        self._store = store
        self._archive = archive
        self._settled = Settled()

    async def keep(self, key: Key, session: Session, *, mark: float) -> None:
        """Keeps a session as it was told at ``mark``. Raises StoreError; what else is wrong the log tells."""
        try:
            reach = await self._archive.keep(key, session, mark=mark)
            await self._keep_moved(key, session, reach)
            self._settled.add(key, session.cold_count)
        except Unreadable as error:
            _log.warning("What moved out of a session cannot be read for the archive: %s", error)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - one session that cannot be kept must not hold up the rest
            _log.error("A session cannot be archived: %s", type(error).__name__)

    async def _keep_moved(self, key: Key, session: Session, reach: int) -> None:
        try:
            await self._keep_pages(key, session, self._settled.within(key, reach))
        except Unreadable:  # of what is kept already, perhaps
            await self._keep_pages(key, session, reach)

    async def _keep_pages(self, key: Key, session: Session, reach: int) -> None:
        async for start, moved in pages(self._store, key, session, reach):
            await self._archive.keep_moved(key, session, moved, start=start)
