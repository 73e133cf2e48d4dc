"""What is known of persons: facts, each once, few enough to be told, corrected by new ones."""

import asyncio
import hashlib
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import msgspec

from filters.injection import comparable
from proxy.memory.archive.records import Category, Fact
from proxy.memory.errors import StoreError
from proxy.memory.redaction.redaction import NO_REDACTION, Redaction
from proxy.memory.stores.store import Owner
from proxy.memory.tasks import wait_until_done

DAY: Final = 86400.0
MAX_FACTS: Final = 100
"""How many facts are known of a person, unless something else is said."""
_GIVEN_UP: Final = 1.0
_TROUBLE: Final = 2
Change = Callable[[], Awaitable[object]]
_log = logging.getLogger("turnkeeper")
_SHORTEST, _LONGEST = 0.1, 2.0
_OUTAGE: Final = 60.0
_DRAINED_WITHIN: Final = 3.0


class FactDraft(msgspec.Struct, frozen=True, kw_only=True):
    """Something to be known from now on; ``replaces`` is the id of what it makes out of date.

    ``said`` is when that was, in seconds since 1970, where it was not just now.
    """

    text: str
    category: Category = "core"
    evidence: tuple[str, ...] = ()
    replaces: str | None = None
    importance: float = 0.5
    stated_at: float = math.inf


class FactStore(Protocol):
    """Where facts are kept, the archive or another place; every method may raise StoreError."""

    async def add_fact(self, person: Owner, fact: Fact) -> None:
        """Adds a fact, or puts it in the place of the one with its id; the one it replaces is superseded."""
        ...

    async def facts(self, person: Owner, *, now: float, superseded: bool = False) -> list[Fact]:
        """What is known of a person and has not expired, the oldest first."""
        ...

    def facts_nowait(self, person: Owner, *, now: float) -> list[Fact] | None:
        """The same without those that were superseded, where nobody has to wait for it; else ``None``."""
        ...

    async def remove_fact(self, person: Owner, fact: str) -> bool:
        """Removes a fact; whether there was one."""
        ...


class UserFacts:
    """Facts about persons, in one place.

    At most ``most`` are known of each: what is over soon goes first, and of the rest the least important. A
    ``daily`` one lasts for a day, one of the ``conversation`` for so many seconds. None has in it what
    ``redaction`` finds.
    """

    def __init__(
        self,
        shelf: FactStore,
        *,
        most: int = MAX_FACTS,
        conversation: float = 1800.0,
        redaction: Redaction = NO_REDACTION,
    ) -> None:
        self.redact: Callable[[str], str] = redaction.text
        """A text as it is kept."""
        self._shelf = shelf
        self._most = most
        self._lasting = {"core": math.inf, "daily": DAY, "conversation": conversation}

    async def current(self, person: Owner) -> list[Fact]:
        """What is known now, the oldest first. Raises StoreError, as all methods do."""
        return await self._shelf.facts(person, now=time.time())

    def current_nowait(self, person: Owner) -> list[Fact] | None:
        """The same, where nobody has to wait for it; else ``None``."""
        return self._shelf.facts_nowait(person, now=time.time())

    async def find(self, person: Owner, fact: str) -> Fact | None:
        """A fact that is known, by its id."""
        return next((one for one in await self.current(person) if one.id == fact), None)

    async def add(
        self, person: Owner, learnt: FactDraft, *, key: str | None = None, at: float | None = None
    ) -> Fact:
        """Adds a fact; what is known in the same words is that fact already, which is renewed.

        The same ``key`` gives the same id, so that what is learnt twice from one source is known once.
        ``at`` is when the source was read, in seconds since 1970: nothing is added of a person who was
        forgotten since, nor what was over by then.
        """
        learnt = msgspec.structs.replace(learnt, text=self.redact(learnt.text))
        known, words, now = await self.current(person), comparable(learnt.text), at or time.time()
        replaced = next((one for one in known if one.id == learnt.replaces), None)
        same = next((one for one in known if comparable(one.text) == words), None)
        if same is not None:
            return await self._renew(person, same, learnt, replaced, now)
        fact = Fact(
            id=fact_id(person, key, learnt.text),
            text=learnt.text,
            category=learnt.category,
            evidence=learnt.evidence,
            replaces=replaced.id if replaced else None,
            created=now,
            expires=self._until(learnt.category, min(learnt.stated_at, now)),
            importance=learnt.importance,
        )
        if fact.expires is not None and fact.expires <= now:
            return fact
        await self._shelf.add_fact(person, fact)
        left = [one for one in known if one is not replaced]
        await self._let_go(person, left, len(left) + 1 - self._most)
        return fact

    async def correct(self, person: Owner, former: Fact, fact: Fact) -> Fact:
        """Puts a fact in the place of what it was; of another category, it lasts as that does from now on.

        Whatever else is known in the words that it has now, it replaces; by that it loses nothing.
        """
        fact = msgspec.structs.replace(fact, text=self.redact(fact.text))
        now, words = time.time(), comparable(fact.text)
        if fact.category != former.category:
            fact = msgspec.structs.replace(fact, expires=self._until(fact.category, now))
        for one in await self.current(person):
            if one.id != fact.id and comparable(one.text) == words:
                await self._shelf.add_fact(person, msgspec.structs.replace(one, superseded=now))
                fact = self._merged(fact, one)
        await self._shelf.add_fact(person, fact)
        return fact

    def _merged(self, fact: Fact, same: Fact) -> Fact:
        """A fact with what is known beside the same words elsewhere."""
        category = max(fact.category, same.category, key=self._lasting.__getitem__)
        ends = [one.expires for one in (fact, same) if one.expires is not None]
        return msgspec.structs.replace(
            fact,
            category=category,
            expires=None if self._lasting[category] == math.inf else max(ends, default=None),
            importance=max(fact.importance, same.importance),
            evidence=tuple(dict.fromkeys((*fact.evidence, *same.evidence))),
            replaces=same.id,
        )

    async def remove(self, person: Owner, fact: str) -> bool:
        """Removes a fact; whether there was one."""
        return await self._shelf.remove_fact(person, fact)

    async def _renew(
        self, person: Owner, same: Fact, learnt: FactDraft, replaced: Fact | None, now: float
    ) -> Fact:
        """Puts a fact in its own place, as what was learnt makes it; by that it loses nothing."""
        category = max(same.category, learnt.category, key=self._lasting.__getitem__)
        until = self._until(category, min(learnt.stated_at, now))
        fact = msgspec.structs.replace(
            same,
            category=category,
            expires=until and max(until, same.expires or until),
            importance=max(same.importance, learnt.importance),
        )
        if replaced is same:
            fact = msgspec.structs.replace(fact, text=learnt.text)
        elif replaced is not None:
            # Put away by itself: else it would be out of date since the fact came to be known.
            await self._shelf.add_fact(person, msgspec.structs.replace(replaced, superseded=now))
            fact = msgspec.structs.replace(fact, replaces=replaced.id)
        if fact != same:
            await self._shelf.add_fact(person, fact)
        return fact

    def _until(self, category: Category, since: float) -> float | None:
        lasting = self._lasting[category]
        return None if lasting == math.inf else since + lasting

    async def _let_go(self, person: Owner, known: Sequence[Fact], count: int) -> None:
        if count > 0:
            for fact in sorted(known, key=_worth)[:count]:
                await self._shelf.remove_fact(person, fact.id)


def _worth(fact: Fact) -> tuple[bool, float, float]:
    """What is over soon is worth least: gone for it, what lasts would be gone for good."""
    return fact.category == "core", fact.importance, fact.created


def fact_id(person: Owner, key: str | None, text: str) -> str:
    """The id under which a new fact becomes known; without a ``key`` it is another each time."""
    if key is None:
        return f"fact_{secrets.token_hex(8)}"
    source = f"{person.tenant}\0{person.user}\0{key}\0{comparable(text)}"
    return f"fact_{hashlib.sha256(source.encode(errors='surrogatepass')).hexdigest()[:16]}"


class FactReader:
    """Asks for facts on behalf of calls, which it keeps waiting for ``deadline`` seconds at most.

    A look that came too late goes on for up to a second, and nobody asks for its person meanwhile: there may
    be much to tell of one. Where two are late it is the place that is slow, and nobody asks for anybody.
    """

    def __init__(self, facts: UserFacts, *, deadline: float) -> None:
        self._facts = facts
        self._deadline = deadline
        self._late: dict[asyncio.Task[list[Fact]], Owner] = {}

    def read_nowait(self, person: Owner) -> Sequence[Fact] | None:
        """What is known where nobody has to wait for it: in an embedded file; else ``None``."""
        try:
            return self._facts.current_nowait(person)
        except Exception:  # noqa: BLE001 - whoever asks again, and waits, hears what ails it
            return None

    async def read(self, person: Owner) -> Sequence[Fact]:
        """What is known of a person, the oldest first. Raises StoreError."""
        if len(self._late) >= _TROUBLE or person in self._late.values():
            raise StoreError("facts did not come in time a moment ago")
        look = asyncio.create_task(self._facts.current(person))
        try:
            if await wait_until_done(look, self._deadline):
                return look.result()
        except asyncio.CancelledError:
            look.cancel()
            raise
        self._outlived(look, person)
        raise StoreError("facts come too late")

    def _outlived(self, look: asyncio.Task[list[Fact]], person: Owner) -> None:
        self._late[look] = person
        bell = asyncio.get_running_loop().call_later(_GIVEN_UP - self._deadline, look.cancel)

        def come(_: asyncio.Task[list[Fact]]) -> None:
            bell.cancel()
            del self._late[look]
            if not look.cancelled():
                look.exception()  # the caller has left: whoever asks next hears of it himself

        look.add_done_callback(come)


class PendingChanges:
    """Changes of memory that nobody's leaving stops; a store that is away is waited for for a minute."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, works: Sequence[Change], behind: asyncio.Task[None] | None = None) -> asyncio.Task[None]:
        """Begins to do all of it, one behind the other, and ``behind`` what was begun before.

        Whoever wants to may wait.
        """
        task = asyncio.get_running_loop().create_task(_done(works, behind))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self) -> None:
        """Waits until all is done, for three seconds at most; what is left then is not done."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_DRAINED_WITHIN)
            for task in late:
                task.cancel()
            if late:
                _log.error("%d answers' changes of what is known could not be written", len(late))


async def _done(works: Sequence[Change], behind: asyncio.Task[None] | None) -> None:
    if behind:
        await asyncio.wait({behind})
    until = asyncio.get_running_loop().time() + _OUTAGE
    for work in works:
        try:
            await _insisted(work, until)
        except Exception as error:  # noqa: BLE001 - one that cannot be done must not hold up the rest
            _log.error("A change of what is known could not be written: %s", type(error).__name__)


async def _insisted(work: Change, until: float) -> None:
    pause = _SHORTEST
    while True:
        try:
            await work()
        except StoreError:
            if asyncio.get_running_loop().time() + pause > until:
                raise
        else:
            return
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST)
