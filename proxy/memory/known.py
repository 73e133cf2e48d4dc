"""What a turn gets to know of its session: one read, and values that no longer change."""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from filters.base import Snapshot
from filters.message import Message, epoch_seconds
from proxy.memory.apart import apart
from proxy.memory.facts.telling import epoch
from proxy.memory.recent import Recent
from proxy.memory.reconcile.reconcile import marked, missing
from proxy.memory.reconcile.spelling import as_held
from proxy.memory.replay.belated import righted
from proxy.memory.replay.beside import beside
from proxy.memory.replay.coverage import shown
from proxy.memory.replay.onesided import Onesided, onesided, rest
from proxy.memory.replay.parting import Parted, parted, without
from proxy.memory.replay.replay import Replay
from proxy.memory.session.entry import message_of
from proxy.memory.session.segment import START, Reach
from proxy.memory.session.session import Session
from proxy.memory.sight import Reading, Sight
from proxy.memory.speech.speech import spoken
from proxy.memory.store import Key


class Known(NamedTuple):
    """What filters may know of a session, the client's window, and when this is between two compactions."""

    snapshot: Snapshot
    window: Sequence[Message]
    epoch: bytes


class Wanted(NamedTuple):
    """What a chain does with what is known.

    It is ``injecting`` summaries in the place of turns, and ``restoring`` what a window does not show.
    """

    injecting: bool = True
    restoring: bool = False


USUAL: Final = Wanted()


def known(read: Reading, wanted: Wanted = USUAL) -> Known:
    """What filters may know of a session while the client replays a window, and that window.

    In the window, answers are marked that the caller did not hear to the end, and what summaries cover. A
    window that leaves out all answers gives way to what is brought back.
    """
    session, veiled, replay = read.session, read.veiled, read.replay
    summaries = tuple(segment.text for segment in session.summaries) if wanted.injecting else ()
    if replay is None:
        carried = () if session.moved else summaries  # of what was said elsewhere
        snapshot = Snapshot(state=session.state, summaries=carried)
        return Known(snapshot, read.window, epoch(session, session.life, injecting=wanted.injecting))
    given, results = veiled.at(replay), parted(replay)
    window, replay, results = _without(veiled.window, replay, results, session)
    window, replay = righted(window, replay)
    silent = onesided(replay, window) if wanted.restoring else Onesided()
    also, behind = (*results.held, *silent.places), session.reach if summaries else START
    former = _former(session, replay, behind) if wanted.injecting else ()
    lost = missing(replay, behind=behind, also=also, given=given)
    dropped = (*former, *lost, *map(veiled.given, results.new))
    snapshot = _snapshot(session, replay, dropped, summaries)
    if silent.lines:
        window, replay = without(window, silent.lines), rest(replay, silent.lines)
    heard = marked(window, replay)
    if wanted.restoring:
        heard = as_held(window, heard, replay)
    seen = shown(session, replay, window, heard) if summaries else heard
    return Known(
        snapshot,
        veiled.unveiled(window, seen),
        epoch(session, session.life + replay.anew, injecting=wanted.injecting),
    )


def _without(
    window: Sequence[Message], replay: Replay, results: Parted, session: Session
) -> tuple[Sequence[Message], Replay, Parted]:
    """The window less its parted results; all of it, where what is left would be of another life."""
    if not results.lines:
        return window, replay, results
    left = without(window, results.lines)
    laid_again = beside(session, spoken(left))
    return (window, replay, Parted()) if laid_again.anew != replay.anew else (left, laid_again, results)


def _former(session: Session, replay: Replay, behind: Reach) -> tuple[Message, ...]:
    """What was said in lives that are over and no summary tells yet: who calls again at once speaks of it."""
    life = session.life + replay.anew
    if not session.entries or session.entries[0].life == life:
        return ()
    return tuple(message_of(e) for e in session.entries if e.life < life and e.place > behind)


def _snapshot(
    session: Session, replay: Replay, dropped: tuple[Message, ...], summaries: tuple[str, ...]
) -> Snapshot:
    return Snapshot(
        dropped=dropped,
        state=session.state,
        scale=session.scale or 1.0,
        summaries=summaries,
        began=epoch_seconds(session.began),
        speakers=frozenset(name for entry in replay.held for name in (entry.user, entry.name) if name),
    )


async def read_session(
    store: Recent, key: Key, sight: Sight, wanted: Wanted = USUAL
) -> tuple[Reading, Known]:
    """What is held of a session beside a window, and what filters may know of it. Raises StoreError.

    While a store is asked that has to be waited for, the window is laid beside what was written last: nearly
    always that is what comes.
    """
    last = store.last(key) if store.rounds else None
    if last is None:
        return await _told(sight, wanted, *store.opened(key, await store.read(key)))
    asked = asyncio.create_task(store.read(key))
    try:
        for _ in range(store.rounds):
            await asyncio.sleep(0)
        guess, likely = await _told(sight, wanted, last.session)
        held = await asked
    finally:
        asked.cancel()
    if held is not None and held.blob == last.blob:
        return guess._replace(version=held.version), likely
    return await _told(sight, wanted, *store.opened(key, held))


async def _told(sight: Sight, wanted: Wanted, session: Session, version: int = 0) -> tuple[Reading, Known]:
    def work() -> tuple[Reading, Known]:
        read = sight.beside(session, version)
        return read, known(read, wanted)

    return await apart(work, len(session.entries) + len(sight.window))
