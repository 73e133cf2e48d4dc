"""Reads, adds, corrects, removes and searches facts about users, and detects texts that are no facts."""

import asyncio
import hashlib
import itertools
import logging
import math
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import msgspec

from filters.injection import comparable, one_line
from proxy.circuit import Backoff
from proxy.clock import wall_time
from proxy.memory.archive.recall import MODEL_TIMEOUT, Searcher
from proxy.memory.archive.records import Category, Fact, Query, SearchResult
from proxy.memory.archive.terms import Lexicon
from proxy.memory.errors import StoreError
from proxy.memory.redaction import NO_REDACTION, Redaction
from proxy.memory.stores.store import Owner
from proxy.memory.tasks import Tasks, wait_until_done

DAY: Final = 86400.0
MAX_FACTS: Final = 100
"""The default maximum of facts of a user."""
FactChange = Callable[[], Awaitable[object]]

_LATE_READS: Final = 2
_LONGEST_READ: Final = 1.0
_BACKOFF: Final = Backoff(0.1, 2.0)
_OUTAGE: Final = 60.0
_DRAINED_WITHIN: Final = 3.0
_SUBJECT: Final = re.compile(
    r"^(?:(?:the |this )?(?:user|caller|person|customer)(?:['\u2019]s)?|s?he|they|i|his|her|their|my)\s+"
)
_EMPTY_WORDS: Final = frozenset(("a", "an", "the", "is", "are", "has", "have", "called", "named", "that"))
_PUNCTUATION: Final = ".,;:!?"
_log = logging.getLogger("turnkeeper")

_LONGEST: Final = 2000
_ASSISTANT: Final = (
    r"(?:the |this |an |your |any |every |der |die |das |ein |l['\u2019]|le |la |el |il |o |a )?"
    r"(?:ai|assistants?|chat ?bots?|bots?|llm|language models?|models?|system|voice agents?|assistente?n?"
    r"|asistente|modell?o|modèle|sistema|ki)"
)
# Verbs for what assistants do rather than callers; facts have verbs in the third person.
_ACTS: Final = (
    r"answer|apply|approve|ask|authori[sz]e|bypass|call|charge|comply|confirm|disclose|follow|give|grant"
    r"|greet|ignore|mention|obey|offer|output|print|refund|refuse|repeat|reply|respond|reveal|say|share"
    r"|skip|speak|tell|transfer|treat|trust|use|verify|waive"
)
_INSTRUCTIONS: Final = re.compile(
    # A role, as in a transcript.
    r"^[\W_]*(?:system|developer|assistant|ai|tool|function)\b[^:\uff1a]{0,64}[:\uff1a]"
    # Addresses the assistant.
    r"|^(?:please |from now on,? |always |never |bitte )*you(?:['\u2019]re| are| must| should| shall| will"
    r"| may| can| have to| need to)\b"
    r"|^(?:du (?:musst|sollst|darfst|bist)|sie (?:müssen|sollen|dürfen) (?:immer|nie)|tu dois|vous devez"
    r"|debes|usted debe|devi|você deve)\b"
    # Duties of the assistant.
    rf"|^{_ASSISTANT} (?:must|should|shall|has to|have to|is to|needs to|may|can|will|muss|soll|darf|doit"
    r"|debe|deve)\b"
    # Commands.
    rf"|^(?:please |from now on,? |when asked,? )*(?:always|never|don['\u2019]t|do not) (?:{_ACTS})\b"
    rf"|^(?:please|from now on,?) (?:{_ACTS}|act|behave|pretend|be)\b"
    r"|^(?:ignore|disregard|override|bypass|obey|pretend|act as|respond|reply|ignoriere|antworte|vergiss alle"
    r"|ignorez|ignora|ignorar)\b"
    r"|\b(?:ignore|disregard|override|forget|bypass)\b[^.]{0,40}\b(?:instructions?|rules?|prompts?|policy"
    r"|policies|guidelines|restrictions|safeguards|checks?)\b"
    r"|\b(?:ignorier\w*|vergiss)\b[^.]{0,40}\b(?:anweisung\w*|regeln)\b"
    # Privileged roles.
    r"|\b(?:has|have|with|in|gets?|enabled?|granted|full) (?:full |all |an? |the )?"
    r"(?:admin(?:istrator)?|root|system|developer|debug|jailbreak|god|operator)s?[- ](?:mode|access|rights"
    r"|privileges?|permissions?|role)\b",
    re.IGNORECASE,
)


class FactDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A fact to be added; it supersedes the one with the id ``replaces``, else that of its ``field``.

    ``stated_at`` is in seconds since 1970; the default stands for now.
    """

    text: str
    category: Category = "core"
    evidence: tuple[str, ...] = ()
    replaces: str | None = None
    importance: float = 0.5
    stated_at: float = math.inf
    since: float | None = None
    until: float | None = None
    field: str | None = None


class FactStore(Protocol):
    """Where facts are stored, in the archive or in Mem0. Every method may raise StoreError."""

    async def add_fact(self, user: Owner, fact: Fact) -> None:
        """Adds a fact, or replaces the one with the same id; the one that it ``replaces`` is superseded."""
        ...

    async def facts(self, user: Owner, *, now: float, superseded: bool = False) -> list[Fact]:
        """Reads a user's facts that have not expired, the oldest first."""
        ...

    def facts_nowait(self, user: Owner, *, now: float) -> list[Fact] | None:
        """Reads a user's current facts without waiting; ``None`` if that is impossible."""
        ...

    async def remove_fact(self, user: Owner, fact_id: str) -> bool:
        """Removes a fact; returns whether there was one."""
        ...


class UserFacts:
    """The facts of users in one store, without duplicates. Every method may raise StoreError.

    A user has at most ``most`` facts: those that expire are removed first, then the least important. A
    ``daily`` fact lasts for a day, one of category ``conversation`` for ``conversation`` seconds.
    ``redaction`` is applied to all texts.
    """

    def __init__(
        self,
        store: FactStore,
        *,
        most: int = MAX_FACTS,
        conversation: float = 1800.0,
        redaction: Redaction = NO_REDACTION,
    ) -> None:
        self.redact: Callable[[str], str] = redaction.text
        """Redacts a text for the store."""
        self.store = store
        self._most = most
        self._lifetimes = {"core": math.inf, "daily": DAY, "conversation": conversation}

    async def current(self, user: Owner) -> list[Fact]:
        """Reads a user's current facts, the oldest first."""
        return await self.store.facts(user, now=wall_time())

    async def find(self, user: Owner, fact_id: str) -> Fact | None:
        """Returns the current fact with an id, or ``None``."""
        return next((one for one in await self.current(user) if one.id == fact_id), None)

    async def add(
        self, user: Owner, draft: FactDraft, *, key: str | None = None, at: float | None = None
    ) -> Fact:
        """Adds a fact, or renews the one with the same words; returns it.

        The same ``key`` and text give the same id, so that a source adds a fact only once. ``at`` is when the
        source was read, in seconds since 1970: facts of a user who was erased later, and facts that had
        expired by then, are not added.
        """
        draft = msgspec.structs.replace(draft, text=self.redact(draft.text))
        facts, now = await self.current(user), at or wall_time()
        replaced = next((one for one in facts if one.id == draft.replaces), None)
        if replaced is None and draft.field is not None:
            replaced = next((one for one in facts if one.field == draft.field), None)
        same = _same(facts, draft)
        if same is not None:
            return await self._renew(user, same, draft, replaced, now)
        fact = Fact(
            id=fact_id(user, key, draft.text),
            text=draft.text,
            category=draft.category,
            evidence=draft.evidence,
            replaces=replaced.id if replaced else None,
            created=now,
            expires=_sooner(self._expiry(draft.category, min(draft.stated_at, now)), draft.until),
            importance=draft.importance,
            since=draft.since,
            until=draft.until,
            field=draft.field,
        )
        if fact.expires is not None and fact.expires <= now:
            return fact
        await self.store.add_fact(user, fact)
        others = [one for one in facts if one is not replaced]
        # Facts that expire are removed first.
        others.sort(key=lambda one: (one.category == "core", one.importance, one.created))
        for one in others[: max(0, len(others) + 1 - self._most)]:
            await self.store.remove_fact(user, one.id)
        return fact

    async def _renew(
        self, user: Owner, same: Fact, draft: FactDraft, replaced: Fact | None, now: float
    ) -> Fact:
        """Updates a fact from a draft with the same words; longer lifetime and higher importance count."""
        category = max(same.category, draft.category, key=self._lifetimes.__getitem__)
        expiry = self._expiry(category, min(draft.stated_at, now))
        until = same.until if draft.until is None else draft.until
        fact = msgspec.structs.replace(
            same,
            category=category,
            expires=_sooner(expiry and max(expiry, same.expires or expiry), until),
            importance=max(same.importance, draft.importance),
            since=same.since if draft.since is None else draft.since,
            until=until,
            field=draft.field or same.field,
        )
        if replaced is same:
            fact = msgspec.structs.replace(fact, text=draft.text)
        elif replaced is not None:
            # A write of its own: by ``replaces``, it would count as superseded since the fact was created.
            await self.store.add_fact(user, msgspec.structs.replace(replaced, superseded=now))
            fact = msgspec.structs.replace(fact, replaces=replaced.id)
        if fact != same:
            await self.store.add_fact(user, fact)
        return fact

    async def correct(self, user: Owner, former: Fact, fact: Fact) -> Fact:
        """Replaces a fact by its correction; a new category or end sets a new expiry, counted from now.

        Other facts with the same words are merged into the correction.
        """
        fact = msgspec.structs.replace(fact, text=self.redact(fact.text))
        now, words = wall_time(), comparable(fact.text)
        if (fact.category, fact.until) != (former.category, former.until):
            expiry = self._expiry(fact.category, now)
            fact = msgspec.structs.replace(fact, expires=_sooner(expiry, fact.until))
        for same in await self.current(user):
            if same.id == fact.id or comparable(same.text) != words:
                continue
            await self.store.add_fact(user, msgspec.structs.replace(same, superseded=now))
            category = max(fact.category, same.category, key=self._lifetimes.__getitem__)
            ends = [one.expires for one in (fact, same) if one.expires is not None]
            fact = msgspec.structs.replace(
                fact,
                category=category,
                expires=None if self._lifetimes[category] == math.inf else max(ends, default=None),
                importance=max(fact.importance, same.importance),
                evidence=tuple(dict.fromkeys((*fact.evidence, *same.evidence))),
                replaces=same.id,
            )
        await self.store.add_fact(user, fact)
        return fact

    async def remove(self, user: Owner, fact_id: str) -> bool:
        """Removes a fact; returns whether there was one."""
        return await self.store.remove_fact(user, fact_id)

    def _expiry(self, category: Category, since: float) -> float | None:
        lifetime = self._lifetimes[category]
        return None if lifetime == math.inf else since + lifetime


def _sooner(expiry: float | None, until: float | None) -> float | None:
    return min((one for one in (expiry, until) if one is not None), default=None)


def _same(facts: Sequence[Fact], draft: FactDraft) -> Fact | None:
    """Returns the fact with the same words, else one with the same content words in the same order.

    By content words alone, facts with another field or negation are different.
    """
    words = comparable(draft.text)
    if same := next((one for one in facts if comparable(one.text) == words), None):
        return same
    content = _content(draft.text)
    alike = (one for one in facts if draft.field in {None, one.field} and _content(one.text) == content)
    return next(alike, None) if len(content) > 1 else None


def _content(text: str) -> list[str]:
    """Returns the content words of a fact: without articles, auxiliaries and the subject."""
    words = _SUBJECT.sub("", comparable(text), count=1).split()
    return [word.rstrip(_PUNCTUATION) for word in words if word.rstrip(_PUNCTUATION) not in _EMPTY_WORDS]


def fact_id(user: Owner, key: str | None, text: str) -> str:
    """Returns the id of a new fact, which is random without a ``key``."""
    if key is None:
        return f"fact_{secrets.token_hex(8)}"
    source = f"{user.tenant}\0{user.user}\0{key}\0{comparable(text)}"
    return f"fact_{hashlib.sha256(source.encode(errors='surrogatepass')).hexdigest()[:16]}"


class FactReader:
    """Reads facts for calls, within ``deadline`` seconds.

    A late read continues for up to a second; until it ends, its user's facts are not read again. While two
    reads are late, the store is considered slow, and no facts are read. With ``is_bounded``, the store itself
    keeps the deadline.
    """

    def __init__(self, facts: UserFacts, *, deadline: float, is_bounded: bool = False) -> None:
        self._facts = facts
        self._deadline = deadline
        self._is_bounded = is_bounded
        self._late: dict[asyncio.Task[list[Fact]], Owner] = {}

    def read_nowait(self, user: Owner) -> Sequence[Fact] | None:
        """Reads a user's facts without waiting, as from an embedded file; ``None`` if that is impossible."""
        try:
            return self._facts.store.facts_nowait(user, now=wall_time())
        except Exception:  # noqa: BLE001 - ``read`` raises the error again
            return None

    async def read(self, user: Owner) -> Sequence[Fact]:
        """Reads a user's facts, the oldest first. Raises StoreError, also if they come too late."""
        if self._is_bounded:
            return await self._facts.current(user)
        if len(self._late) >= _LATE_READS or user in self._late.values():
            raise StoreError("facts did not arrive in time a moment ago")
        reading = asyncio.create_task(self._facts.current(user))
        try:
            if await wait_until_done(reading, self._deadline):
                return reading.result()
        except BaseException:  # the caller was cancelled
            reading.cancel()
            raise
        self._late[reading] = user
        timer = asyncio.get_running_loop().call_later(_LONGEST_READ - self._deadline, reading.cancel)

        def ended(_: asyncio.Task[list[Fact]]) -> None:
            timer.cancel()
            del self._late[reading]
            if not reading.cancelled():
                reading.exception()  # retrieved, so that it is not logged: the call did not wait for it

        reading.add_done_callback(ended)
        raise StoreError("facts did not arrive in time")


class PendingChanges:
    """Changes of memory that continue when their caller is cancelled, and are retried for a minute."""

    def __init__(self) -> None:
        self._tasks = Tasks()

    def start(
        self, changes: Sequence[FactChange], after: asyncio.Task[None] | None = None
    ) -> asyncio.Task[None]:
        """Starts a task that makes the changes one by one, ``after`` an earlier task; returns it."""
        return self._tasks.start(_make(changes, after))

    async def drain(self) -> None:
        """Waits up to three seconds for all changes, and cancels the rest."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_DRAINED_WITHIN)
            for task in late:
                task.cancel()
            if late:
                _log.error("The changes of facts in %d answers could not be written", len(late))


async def _make(changes: Sequence[FactChange], after: asyncio.Task[None] | None) -> None:
    if after:
        await asyncio.wait({after})
    clock = asyncio.get_running_loop().time
    until = clock() + _OUTAGE
    for change in changes:
        for failures in itertools.count(1):
            try:
                await change()
            except Exception as error:  # noqa: BLE001 - one failing change must not block the others
                pause = _BACKOFF.pause(failures)
                if isinstance(error, StoreError) and clock() + pause <= until:
                    await asyncio.sleep(pause)
                    continue
                _log.error("A change of facts could not be written: %s", type(error).__name__)
            break


def is_instruction(text: str) -> bool:
    """Whether a text is an instruction to an assistant rather than a fact about a user."""
    return _INSTRUCTIONS.search(one_line(text, _LONGEST)) is not None


class FactSearch:
    """Searches facts that no archive indexes, by their words.

    Results of ``others`` are merged in by their scores.
    """

    def __init__(self, facts: UserFacts, others: Searcher | None = None) -> None:
        self._facts = facts
        self._others = others
        self._lexicon = Lexicon()

    async def search(self, user: Owner, query: Query, *, within: float = MODEL_TIMEOUT) -> list[SearchResult]:
        """Returns results, the best first; models that help have ``within`` seconds. Raises StoreError."""
        results = self._matching(await self._facts.current(user), query.text)
        if self._others:
            results += await self._others.search(user, query, within=within)
        return sorted(results, key=lambda one: -one.score)[: query.limit]

    def _matching(self, facts: Sequence[Fact], text: str) -> list[SearchResult]:
        """Returns the facts that share words with a text; the score is the share of its words."""
        wanted = self._lexicon.question(text)
        results = []
        for fact in facts:
            stems = set(self._lexicon.stems(fact.text))
            hits = sum(max((group[stem] for stem in stems & group.keys()), default=0.0) for group in wanted)
            if hits:
                score = round(hits / len(wanted), 4)
                results.append(
                    SearchResult(
                        kind="fact", score=score, text=fact.text, timestamp=fact.created, source=fact.id
                    )
                )
        return results
