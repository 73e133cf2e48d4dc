"""The cold part of a session, read when nobody waits on the line."""

from typing import Final

import msgspec

from proxy.memory.session import Entry, Session
from proxy.memory.stores.store import Key, Store

_AT_ONCE: Final = 1000


async def all_of(store: Store, key: Key, session: Session) -> tuple[Entry, ...]:
    """All entries of a session, the cold part's first."""
    moved = await cold_part(store, key, session.cold_count)
    return (*(msgspec.msgpack.decode(entry, type=Entry) for entry in moved), *session.entries)


async def cold_part(store: Store, key: Key, count: int) -> list[bytes]:
    """The first ``count`` entries of the cold part, which only grows; fewer where it is deleted meanwhile."""
    found: list[bytes] = []
    while len(found) < count:
        page = await store.cold(key, start=len(found), limit=min(_AT_ONCE, count - len(found)))
        if not page:
            break
        found += page
    return found
