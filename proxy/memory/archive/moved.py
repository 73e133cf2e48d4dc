"""What moved out of a session before the archive had it, as it is read for the archive."""

import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec

from proxy.memory.errors import Unreadable
from proxy.memory.session import UNREADABLE, Entry, Session, decode, made_anew
from proxy.memory.stores.store import Key, Store

_AT_ONCE: Final = 100
_LOOKED_BACK: Final = 10
_MOST: Final = 10_000
# More than a session holds ready, unless its settings are far from what is shipped.
_UNSURE: Final = 200


class Settled:
    """How many moved entries of a session are kept as they will stay.

    What was hot when it was kept last, by whichever process, may have been put right before it moved out.
    """

    def __init__(self) -> None:
        self._moved: dict[Key, int] = {}

    def within(self, key: Key, reach: int) -> int:
        """How many of those that are kept, ``reach`` of them, are settled."""
        return min(reach, self._moved.get(key, max(0, reach - _UNSURE)))

    def add(self, key: Key, moved: int) -> None:
        """To be told when all that had moved was kept."""
        self._moved.pop(key, None)
        self._moved[key] = moved
        if len(self._moved) > _MOST:
            del self._moved[next(iter(self._moved))]


async def pages(
    store: Store, key: Key, session: Session, start: int
) -> AsyncIterator[tuple[int, Sequence[Entry]]]:
    """The moved entries from one on, each page whole from the first entry of its turn; where each begins.

    None of a session that was made anew under its name: they are not this one's.
    """
    while start < session.cold_count and await _is_held(store, key, session):
        moved = await _moved(store, key, start, min(_AT_ONCE, session.cold_count - start))
        if not moved:
            return
        begun = await _begun(store, key, start, moved[0])
        yield start - len(begun), [*begun, *moved]
        start += len(moved)


async def _is_held(store: Store, key: Key, session: Session) -> bool:
    try:
        held = await store.read(key, leisure=True)
        return held is not None and not made_anew(decode(held.blob), session)
    except UNREADABLE:
        return False


async def _begun(store: Store, key: Key, end: int, entry: Entry) -> list[Entry]:
    """What stands before an entry, the one at ``end``, in its own turn."""
    begun: list[Entry] = []
    while end > 0:
        before = await _before(store, key, end)
        same = [*itertools.takewhile(lambda one: one.turn_ref == entry.turn_ref, reversed(before))]
        begun = [*reversed(same), *begun]
        end = end - len(same) if same and len(same) == len(before) else 0
    return begun


async def _before(store: Store, key: Key, end: int) -> list[Entry]:
    """A few entries, the last of which stands before ``end``; none where that one cannot be read."""
    # A turn moves whole, so that all of it is under one key: what cannot be read belongs to another.
    for count in (min(end, _LOOKED_BACK), 1):
        with contextlib.suppress(Unreadable):
            return await _moved(store, key, end - count, count)
    return []


async def _moved(store: Store, key: Key, start: int, limit: int) -> list[Entry]:
    blobs = await store.cold(key, start=start, limit=limit)
    return [msgspec.msgpack.decode(blob, type=Entry) for blob in blobs]
