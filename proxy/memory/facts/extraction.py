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
from proxy.memory.stores.session_store import SessionStore
from proxy.memory.stores.store import NEVER_DUE, Key, Owner

ENOUGH: Final = 100
"""After this many turns of a call a model is asked, even without a pause."""
_SPOKEN: Final = frozenset({None, "asr", "message"})
_MAX_TOKENS: Final = 4000
_TRIES: Final = 3
_SENTENCE: Final = re.compile(r"(?<=[.!?\u2026])\s+|(?<=[\u3002\uff01\uff1f])|\n+")
_ASKING: Final = ("?", "\uff1f", "\u061f", "\u037e")
_SHORT: Final = 12
"""Messages of at most this many tokens say little by themselves."""
_CONTEXT: Final = 200
_log = logging.getLogger("turnkeeper")


class Utterance(msgspec.Struct, frozen=True):
    """A message of a user, with its source (``session/call/turn``) and its time in seconds since 1970.

    ``answering`` is the end of the assistant's line before it, if needed to understand it; it is no evidence.
    """

    source: str
    text: str
    at: float
    answering: str = ""


class FactFinder(Protocol):
    """A model that finds facts in the messages of one user."""

    async def facts(
        self, utterances: Sequence[Utterance], facts: Sequence[Fact], *, last: str | None
    ) -> Sequence[FactDraft]:
        """Returns new facts, and replacements of ``facts``; ``last`` is the model that the session used last.

        Raises InvalidFacts, UpstreamError if no model answers, and NoModel if there is none.
        """
        ...


class FactExtraction:
    """Extracts facts from the messages of a session's users.

    It is due after ``pause`` seconds without a turn, after the end of a call, and after 100 turns of a call
    that continues.
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
        """The time from which on there is something to extract, in seconds since 1970, or ``NEVER_DUE``."""
        entries, since = session.entries, session.learned_until
        start = count_until(entries, since)
        if next(unexamined_entries(session, entries[start:]), None) is None:
            return NEVER_DUE
        # Turns may have moved to the cold part before facts were extracted from them.
        first = since if entries[0].turn_ref > since else entries[start].turn_ref
        turns = session.next_turn - (since.turn + 1 if since.call == session.call else 0)
        if first.call < session.call or turns >= ENOUGH:
            return 0.0
        return session.updated + self._pause

    async def begin(self, key: Key, session: Session) -> Session:  # noqa: ARG002 - a model is asked
        """Returns the session unchanged: a model takes time, so that ``run`` asks it."""
        return session

    async def run(self, key: Key, unusable: int) -> bool:
        """Extracts facts from the first due messages; returns whether there were any.

        ``unusable`` is the number of unusable answers in a row: each halves the tokens that the model gets.
        After three, messages that lead to another one are skipped. Raises InvalidFacts then as well.
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
                break  # later messages have no room
        if not batch:  # the cold part was deleted meanwhile
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
                    break  # the session was deleted meanwhile
            for draft in drafts:
                # Facts of users who are erased after ``began`` are refused.
                await self._facts.add(user, draft, key=draft.evidence[0], at=began)
        await self._mark(key, session, batch[-1].turn_ref)
        if problem:
            _log.warning("The model gave no usable facts for some turns; these are skipped")
            raise InvalidFacts(problem)
        return True

    def fallback_is_due(self, session: Session) -> bool:  # noqa: ARG002 - the same for all
        """Returns false, because nothing can be done without a model."""
        return False

    async def run_fallback(self, key: Key) -> None:
        """Does nothing: the turns wait for a model."""

    async def _mark(self, key: Key, former: Session, end: TurnRef) -> None:
        """Stores in the session that facts were extracted from its turns up to ``end``."""

        def marked(session: Session) -> Session:
            if made_anew(session, former) or session.learned_until >= end:
                return session
            return msgspec.structs.replace(session, learned_until=end)

        with suppress(WriteConflict):
            await self._store.change(key, marked)


def unexamined_entries(session: Session, entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yields the spoken messages of known users from which no facts were extracted yet."""
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
    """Returns a message for the model, with the end of the assistant's line ``before`` it if needed."""
    before = before.strip()
    pieces = [piece for piece in _SENTENCE.split(before) if piece.strip()]
    if pieces and pieces[-1].rstrip().endswith(_ASKING):
        context = pieces[-1]  # only the question
    else:  # the end of the line, if the message is short
        context = before if in_text(entry.text) <= _SHORT else ""
    source = f"{key.session}/{entry.call}/{entry.turn}"
    return Utterance(source, entry.text, entry.at, context[-_CONTEXT:])


def _lines_before(entries: Iterable[Entry]) -> dict[TurnRef, str]:
    """Returns by turn the assistant's last line before the turn's first message of the user."""
    lines: dict[TurnRef, str] = {}
    last = ""
    for entry in entries:
        if entry.role == "user":
            lines.setdefault(entry.turn_ref, last)
        elif entry.role == "assistant" and entry.text.strip() and entry.source not in PROMPT_SOURCES:
            last = entry.text
    return lines


def _batch(entries: Sequence[Entry], tokens: int) -> list[Entry]:
    """Returns the first whole turns of together at most ``tokens``, but at least one turn."""
    batch: list[Entry] = []
    for _, group in groupby(entries, key=lambda entry: entry.turn_ref):
        turn = list(group)
        tokens -= sum(in_text(entry.text) for entry in turn)
        if tokens < 0 and batch:
            break
        batch += turn
    return batch
