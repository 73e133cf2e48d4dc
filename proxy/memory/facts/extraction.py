"""Facts that are learnt from what callers said: which turns are due, and what becomes of them."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Final, Protocol

import msgspec

from filters.tokens import in_text
from proxy.memory.archive.records import Fact
from proxy.memory.errors import InvalidFacts
from proxy.memory.facts.user_facts import FactDraft, UserFacts
from proxy.memory.session import Entry, Session, TurnRef, made_anew
from proxy.memory.speakers import speaker
from proxy.memory.stores.session_store import NOT_STORED, SessionStore, SessionWrite
from proxy.memory.stores.store import KEEP_EXPIRY, Key, Owner

ENOUGH: Final = 6
"""So many messages of callers are worth asking a model while the conversation goes on."""
_SPOKEN: Final = frozenset({None, "asr", "message"})
_MOST: Final = 4000
_ATTEMPTS: Final = 10
_TRIES: Final = 3
_log = logging.getLogger("turnkeeper")


class Utterance(msgspec.Struct, frozen=True):
    """What a person said in one message: where (``session/life/turn``), and when, in epoch seconds."""

    source: str
    text: str
    at: float


class FactFinder(Protocol):
    """Whoever finds facts in what one person said."""

    async def facts(
        self, said: Sequence[Utterance], known: Sequence[Fact], *, last: str | None
    ) -> Sequence[FactDraft]:
        """What is new beside what is ``known``; ``last`` is the model that the session asked last.

        Raises InvalidFacts, UpstreamError where no model answers, and NoModel where there is none.
        """
        ...


class FactExtraction:
    """Finds facts in sessions, in what their speakers said and nobody else.

    It looks at a session when enough was said, when nothing was said for ``pause`` seconds, and when a life
    of it is over.
    """

    name: Final = "facts"
    has_fallback: Final = False

    def __init__(
        self,
        store: SessionStore,
        facts: UserFacts,
        finder: FactFinder,
        *,
        pause: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._facts = facts
        self._finder = finder
        self._pause = pause
        self._clock = clock

    @property
    def delay(self) -> float:
        """A pause is due when nothing is written any more."""
        return self._pause

    def is_due(self, session: Session) -> bool:
        """Whether there is anything to look at now."""
        paused = self._clock() - session.updated >= self._pause
        if not (paused or _may_be_urgent(session)):
            return False
        new = unexamined_entries(session, session.entries)
        if not new:
            return False
        is_urgent = new[0].call < session.call or _has_moved(session)
        return is_urgent or len(new) >= ENOUGH or paused

    async def run(self, key: Key, unusable: int) -> bool:
        """Looks at what is due, or a part of it; whether there was anything.

        After each useless answer a model is shown half as much; what it cannot be made to answer usefully is
        passed over after three in a row.
        """
        began = self._clock()
        session = await self._read(key)
        if session is None or not self.is_due(session):
            return False
        batch = _batch(
            unexamined_entries(session, await self._entries(key, session)), _MOST >> min(unusable, _TRIES)
        )
        await self._learn(key, session, batch, at=began, passing_over=unusable >= _TRIES)
        await self._mark(key, session, batch[-1].turn_ref)
        return True

    async def run_fallback(self, key: Key) -> None:
        """Nothing stands in for a fact: the turns wait for the model."""

    async def _learn(
        self, key: Key, session: Session, batch: Sequence[Entry], *, at: float, passing_over: bool
    ) -> None:
        """``at`` is when the words were read: a person who is forgotten later stays forgotten."""
        for name in dict.fromkeys(filter(None, (speaker(session, entry) for entry in batch))):
            said = [utterance_of(key, entry) for entry in batch if speaker(session, entry) == name]
            person = Owner(key.tenant, name)
            try:
                found = await self._finder.facts(said, await self._facts.current(person), last=session.model)
            except InvalidFacts:
                if not passing_over:
                    raise
                _log.warning("No model finds facts in some turns; they are passed over")
                continue
            if found and await self._is_gone(key, session):
                return
            for learnt in found:
                await self._facts.add(person, learnt, key=learnt.evidence[0], at=at)

    async def _entries(self, key: Key, session: Session) -> Sequence[Entry]:
        """All that may not have been looked at."""
        if _has_moved(session):
            return await self._store.entries(key, session)
        return session.entries

    async def _read(self, key: Key) -> Session | None:
        stored = await self._store.load(key, background=True)
        return stored.session if stored else None

    async def _is_gone(self, key: Key, former: Session) -> bool:
        """Whether a session was deleted meanwhile, be there a new one under its name by now."""
        session = await self._read(key)
        return session is None or made_anew(session, former)

    async def _mark(self, key: Key, former: Session, reach: TurnRef) -> None:
        for _ in range(_ATTEMPTS):
            session, version = await self._store.load(key, background=True) or NOT_STORED
            if not version or made_anew(session, former) or session.learned_until >= reach:
                return
            marked = msgspec.structs.replace(session, learned_until=reach)
            if await self._store.save(key, SessionWrite(marked, version, KEEP_EXPIRY, background=True)):
                return


def _may_be_urgent(session: Session) -> bool:
    """Told at a glance: whether so much was said, or a life is over, that no pause need be waited for."""
    entries = session.entries
    place = -min(ENOUGH, len(entries))
    return bool(entries) and (
        entries[place].turn_ref > session.learned_until or entries[0].call < session.call
    )


def _has_moved(session: Session) -> bool:
    """Whether turns may have moved to the cold part before they were looked at."""
    return session.cold_count > 0 and session.entries[0].turn_ref > session.learned_until


def unexamined_entries(session: Session, entries: Iterable[Entry]) -> list[Entry]:
    """The messages of callers that were not looked at; whose nobody knows, or that nobody said, are none."""
    return [
        entry
        for entry in entries
        if entry.turn_ref > session.learned_until
        and entry.role == "user"
        and entry.source in _SPOKEN
        and entry.text.strip()
        and speaker(session, entry)
    ]


def utterance_of(key: Key, entry: Entry) -> Utterance:
    """A message as it is looked at."""
    place = f"{key.session}/{entry.call}/{entry.turn}"
    return Utterance(place, entry.text, entry.at)


def _batch(entries: Sequence[Entry], left: int) -> list[Entry]:
    """The first of them, whole turns, no more than a model can be shown at once."""
    batch: list[Entry] = []
    for _, turn in groupby(entries, key=lambda entry: entry.turn_ref):
        said = list(turn)
        left -= sum(in_text(entry.text) for entry in said)
        if left < 0 and batch:
            break
        batch += said
    return batch
