"""What a turn gets to know of its session: one read, and values that no longer change."""

from collections.abc import Sequence
from typing import NamedTuple

from filters.base import Snapshot
from filters.message import Message, epoch_seconds
from proxy.memory.attempt import UNTOLD, Asking, Attempt
from proxy.memory.coverage import shown
from proxy.memory.parting import parted, without
from proxy.memory.reconcile import marked, missing
from proxy.memory.replay import Replay, beside
from proxy.memory.segment import START
from proxy.memory.session import Session, decode
from proxy.memory.speech import Speech, spoken
from proxy.memory.store import Key, Store
from proxy.memory.telling import epoch


class Reading(NamedTuple):
    """A session as a turn read it, and the client's window beside it: what is recorded goes on from there.

    ``version`` is the one that a write replaces, 0 where nothing is held yet. ``replay`` is ``None`` where
    nothing was said yet.
    """

    session: Session
    version: int
    said: Speech
    replay: Replay | None

    def of(self, session: Session) -> Replay | None:
        """The window beside a session, where that holds the same talk."""
        own = self.session
        return self.replay if session.entries is own.entries and session.newest is own.newest else None


async def recall(store: Store, key: Key) -> Session:
    """What is held of a session; an empty one where nothing is. Raises StoreError."""
    held = await store.read(key)
    return decode(held.blob) if held else Session()


async def reading(store: Store, key: Key, window: Sequence[Message], attempt: Attempt = UNTOLD) -> Reading:
    """What is held of a session, beside the window of a request. Raises StoreError."""
    held = await store.read(key)
    session, version = (decode(held.blob), held.version) if held else (Session(), 0)
    return laid(session, window, version, attempt)


def laid(session: Session, window: Sequence[Message], version: int = 0, attempt: Attempt = UNTOLD) -> Reading:
    """A session with a window laid beside it."""
    said = spoken(window)
    replay = beside(session, said, Asking(attempt)) if session.entries else None
    return Reading(session, version, said, replay)


class Known(NamedTuple):
    """What filters may know of a session, the client's window, and when this is between two compactions."""

    snapshot: Snapshot
    window: Sequence[Message]
    epoch: bytes


def known(read: Reading, window: Sequence[Message], *, injecting: bool = True) -> Known:
    """What filters may know of a session while the client replays ``window``, and that window.

    In the window, answers are marked that the caller did not hear to the end, and what summaries cover, where
    the chain is ``injecting`` them: then they stand for all turns behind their reach.
    """
    session, replay = read.session, read.replay
    summaries = tuple(segment.text for segment in session.summaries) if injecting else ()
    if replay is None:
        carried = () if session.moved else summaries  # of what was said elsewhere
        snapshot = Snapshot(state=session.state, summaries=carried)
        return Known(snapshot, window, epoch(session, session.life, injecting=injecting))
    results = parted(replay)
    if results.lines:
        window = without(window, results.lines)
        replay = beside(session, spoken(window))
    behind = session.reach if summaries else START
    snapshot = Snapshot(
        dropped=(*missing(session, window, replay, behind=behind, also=results.held), *results.new),
        state=session.state,
        scale=session.scale or 1.0,
        summaries=summaries,
        began=epoch_seconds(session.began),
        speakers=frozenset(name for entry in replay.held for name in (entry.user, entry.name) if name),
    )
    heard = marked(session, window, replay)
    return Known(
        snapshot,
        shown(session, replay, window, heard) if summaries else heard,
        epoch(session, session.life + replay.anew, injecting=injecting),
    )
