"""What a turn gets to know of its session: one read, and values that no longer change."""

from collections.abc import Sequence

from filters.base import Snapshot
from filters.message import Message
from proxy.memory.reconcile import marked, missing
from proxy.memory.session import Session, decode, message_of
from proxy.memory.store import Key, Store


async def recall(store: Store, key: Key) -> Session:
    """What is held of a session; an empty one where nothing is. Raises StoreError."""
    held = await store.read(key)
    return decode(held.blob) if held else Session()


def snapshot(session: Session, window: Sequence[Message]) -> Snapshot:
    """What filters may know of a session while the client replays ``window``."""
    if not session.entries:
        return Snapshot()
    turns = tuple(message_of(entry) for entry in session.entries if entry.life == session.life)
    return Snapshot(turns=turns, dropped=missing(session, window))


def heard(session: Session, window: Sequence[Message]) -> Sequence[Message]:
    """The window, with answers marked that the caller did not hear to the end."""
    return marked(session, window) if session.entries else window
