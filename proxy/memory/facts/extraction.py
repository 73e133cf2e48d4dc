"""The background job that extracts facts from what users said."""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Final, Protocol

import msgspec

from filters.tokens import in_text
from proxy.clock import wall_time
from proxy.memory.archive.records import Fact
from proxy.memory.errors import InvalidFacts, WriteConflict
from proxy.memory.facts.user_facts import FactDraft, UserFacts
from proxy.memory.session import Entry, Session, TurnRef, count_until, made_anew
from proxy.memory.speakers import speaker
from proxy.memory.speech import PROMPT_SOURCES
from proxy.memory.stores.session_store import SessionStore, StoredSession
from proxy.memory.stores.store import NEVER_DUE, Key, Owner

ENOUGH: Final = 100
"""After so many turns a model is asked though the call goes on without a pause."""
_SPOKEN: Final = frozenset({None, "asr", "message"})
_MAX_TOKENS: Final = 4000
_TRIES: Final = 3
_SENTENCE: Final = re.compile(r"(?<=[.!?\u2026])\s+|(?<=[\u3002\uff01\uff1f])|\n+")
_ASKING: Final = ("?", "\uff1f", "\u061f", "\u037e")
_SHORT: Final = 12
"""Words of no more tokens say little by themselves."""
_CONTEXT: Final = 200
_log = logging.getLogger("turnkeeper")


class Utterance(msgspec.Struct, frozen=True):
    """What a user said in one message: its source (``session/call/turn``), and when, in epoch seconds.

    ``answering`` is what the assistant had just asked, where the words need it: no evidence of anything.
    """

    source: str
    text: str
    at: float
    answering: str = ""


class FactFinder(Protocol):
    """A model that finds facts in what one user said."""

    async def facts(
        self, utterances: Sequence[Utterance], facts: Sequence[Fact], *, last: str | None
    ) -> Sequence[FactDraft]:
        """New facts, and changes to those in ``facts``; ``last`` is the model that the session used last.

        Raises InvalidFacts, UpstreamError where no model answers, and NoModel where there is none.
        """
        ...


class FactExtraction:
    """Extracts facts from what the users of a session said.

    It is due when nothing was said for ``pause`` seconds, when a call is over, and after a hundred turns of a
    call that goes on.
    """

    name: Final = "facts"

    def __init__(
        self,
        store: SessionStore,
        facts: UserFacts,
        finder: FactFinder,
        *,
        pause: float,
        clock: Callable[[], float] = wall_time,
    ) -> None:
        self._store = store
        self._facts = facts
        self._finder = finder
        self._pause = pause
        self._clock = clock

    def due_at(self, session: Session) -> float:
        """From when on there is anything to extract."""
        entries, since = session.entries, session.learned_until
        start = count_until(entries, since)
        if next(unexamined_entries(session, entries[start:]), None) is None:
            return NEVER_DUE
        # Turns may have moved to the cold part before facts were extracted from them.
        may_have_moved = session.cold_count > 0 and entries[0].turn_ref > since
        first = since if may_have_moved else entries[start].turn_ref
        turns = session.next_turn - (since.turn + 1 if since.call == session.call else 0)
        if first.call < session.call or turns >= ENOUGH:
            return 0.0
        return session.updated + self._pause

    async def begin(self, key: Key, stored: StoredSession) -> StoredSession:  # noqa: ARG002 - a model is asked
        """Returns the session as it is: facts take time, and are found by ``run``."""
        return stored

    async def run(self, key: Key, unusable: int) -> bool:
        """Extract facts from what is due, or a part of it; whether there was anything.

        After each unusable answer the model gets half as much; after three in a row, a part that brings
        another one is skipped. Raises InvalidFacts then, too.
        """
        began = self._clock()
        session = await self._store.session(key)
        if session is None or self.due_at(session) > began:
            return False
        entries: list[Entry] = []
        batch: list[Entry] = []
        async for page in self._store.pages(key, session, since=session.learned_until):
            entries += page
            due = [*unexamined_entries(session, entries)]
            batch = _batch(due, _MAX_TOKENS >> min(unusable, _TRIES))
            if len(batch) < len(due):
                break  # for what comes behind that there is no room
        if not batch:  # what had moved was deleted meanwhile
            return False
        problem = ""
        contexts = _lines_before(entries)
        for name in dict.fromkeys(filter(None, (speaker(session, entry) for entry in batch))):
            utterances = [
                utterance_of(key, entry, contexts.get(entry.turn_ref, ""))
                for entry in batch
                if speaker(session, entry) == name
            ]
            user = Owner(key.tenant, name)
            current = await self._facts.current(user)
            try:
                drafts = await self._finder.facts(utterances, current, last=session.model)
            except InvalidFacts as error:
                if unusable < _TRIES:
                    raise
                problem = str(error)
                continue
            if drafts:
                newest = await self._store.session(key)
                if newest is None or made_anew(newest, session):
                    break  # it was deleted meanwhile
            for draft in drafts:
                # Facts of users who are erased after ``began`` are refused.
                await self._facts.add(user, draft, key=draft.evidence[0], at=began)
        await self._mark(key, session, batch[-1].turn_ref)
        if problem:
            _log.warning("No model finds facts in some turns; they are passed over")
            raise InvalidFacts(problem)
        return True

    def fallback_is_due(self, session: Session) -> bool:  # noqa: ARG002 - the same of all
        """Whether anything can be done without a model: nothing."""
        return False

    async def run_fallback(self, key: Key) -> None:
        """Do nothing: the turns wait for the model."""

    async def _mark(self, key: Key, former: Session, end: TurnRef) -> None:
        """Note in the session that facts were extracted from its turns up to ``end``."""

        def marked(session: Session) -> Session:
            if made_anew(session, former) or session.learned_until >= end:
                return session
            return msgspec.structs.replace(session, learned_until=end)

        with suppress(WriteConflict):
            await self._store.change(key, marked)


def unexamined_entries(session: Session, entries: Iterable[Entry]) -> Iterator[Entry]:
    """The messages that known users spoke and that facts were not extracted from."""
    for entry in entries:
        if (
            (entry.call, entry.turn) > session.learned_until
            and entry.role == "user"
            and entry.source in _SPOKEN
            and entry.text.strip()
            and speaker(session, entry)
        ):
            yield entry


def utterance_of(key: Key, entry: Entry, before: str = "") -> Utterance:
    """A message as the model gets it, with the assistant's line ``before`` it as far as it needs that."""
    before = before.strip()
    pieces = [piece for piece in _SENTENCE.split(before) if piece.strip()]
    if pieces and pieces[-1].rstrip().endswith(_ASKING):
        context = pieces[-1]  # the question alone
    else:  # the end of it, where short words answer it
        context = before if in_text(entry.text) <= _SHORT else ""
    source = f"{key.session}/{entry.call}/{entry.turn}"
    return Utterance(source, entry.text, entry.at, context[-_CONTEXT:])


def _lines_before(entries: Iterable[Entry]) -> dict[TurnRef, str]:
    """By turns, what the assistant said last before their first words of the user."""
    lines: dict[TurnRef, str] = {}
    last = ""
    for entry in entries:
        if entry.role == "user":
            lines.setdefault(entry.turn_ref, last)
        elif entry.role == "assistant" and entry.text.strip() and entry.source not in PROMPT_SOURCES:
            last = entry.text
    return lines


def _batch(entries: Sequence[Entry], tokens: int) -> list[Entry]:
    """The first whole turns, at least one, of so many tokens at most."""
    batch: list[Entry] = []
    for _, group in groupby(entries, key=lambda entry: entry.turn_ref):
        turn = list(group)
        tokens -= sum(in_text(entry.text) for entry in turn)
        if tokens < 0 and batch:
            break
        batch += turn
    return batch
