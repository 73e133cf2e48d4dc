"""The memory tools, carried out on what is known of the turn's user."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, tzinfo
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from filters.injection import comparable
from proxy.memory.archive.recall import Retriever
from proxy.memory.archive.records import Category, Query, SearchResult
from proxy.memory.errors import StoreError
from proxy.memory.facts.user_facts import Change, FactDraft, PendingChanges, UserFacts, fact_id
from proxy.memory.stores.store import Owner
from proxy.memory.view import RetractedTexts
from proxy.tools.offer import FORGET, RECALL, STORE

_MOST_FOUND: Final = 8
_MOST_CALLS: Final = 20
"""How many calls of one turn are carried out: a server that ends has time for as many changes."""
_PATIENCE: Final = 0.5
"""For how many seconds an answer's end may wait for what is owed."""
Text = Annotated[str, Meta(min_length=1, max_length=2000)]


class _Store(msgspec.Struct):
    text: Text
    category: Category = "core"
    replaces: str | None = None


class _Recall(msgspec.Struct):
    query: Text


class _Forget(msgspec.Struct):
    id: Text


class _Owed(msgspec.Struct, frozen=True):
    """A change that the model was told of; ``text`` is ``None`` for a fact that goes.

    What goes by the work of another change has none of its own.
    """

    id: str
    work: Change | None
    text: str | None = None


class MemoryTools:
    """Carries out tool calls for one person; what goes wrong is told to the model, in time.

    What is to be changed is owed until the turn is worth it: the model is told as if it were done, and finds
    it so. The first twenty calls are carried out. Of a person without a name nothing is kept. Days begin as
    in ``zone``. What is ``unsaid`` of the talk at hand is not found, and what is found is told as it may be
    ``shown``.
    """

    def __init__(  # noqa: PLR0913 - whose it is, and what it is carried out on
        self,
        person: Owner,
        knowledge: UserFacts,
        finder: Retriever,
        zone: tzinfo = UTC,
        promises: PendingChanges | None = None,
        *,
        unsaid: RetractedTexts | None = None,
        shown: Callable[[str], str] = str,
    ) -> None:
        self._person = person
        self._knowledge = knowledge
        self._finder = finder
        self._zone = zone
        self._promises = promises or PendingChanges()
        self._unsaid = unsaid or RetractedTexts()
        self._shown = shown
        self._calls = 0
        self._owed: list[_Owed] = []
        self._begun: list[_Owed] = []
        self._keeping: asyncio.Task[None] | None = None
        self._tools: dict[str, Callable[[str, float], Awaitable[Any]]] = {
            STORE: self._store,
            RECALL: self._recall,
            FORGET: self._forget,
        }

    async def run(self, name: str, arguments: str, until: float) -> str:
        """What the model is told, as JSON; memory may answer until then, in the loop's time."""
        self._calls += 1
        return msgspec.json.encode(await self._told(name, arguments or "{}", until)).decode()

    async def _told(self, name: str, arguments: str, until: float) -> Any:
        if self._calls > _MOST_CALLS:
            return {"error": f"This was not done: memory takes {_MOST_CALLS} calls in one turn."}
        try:
            async with asyncio.timeout_at(until):
                return await self._tools[name](arguments, until)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            return {"error": f"The arguments cannot be used: {error}"}
        except (StoreError, TimeoutError):
            return {"error": "Memory does not answer now. Go on without it."}

    @property
    def has_pending(self) -> bool:
        """As the protocol has it."""
        return bool(self._owed)

    def commit(self) -> None:
        """As the protocol has it: whatever becomes of the turn."""
        if self._owed:
            works = [one.work for one in self._owed if one.work]
            self._keeping = self._promises.start(works, after=self._keeping)
            self._begun += self._owed
            self._owed = []

    async def settle(self) -> None:
        """As the protocol has it."""
        self.commit()
        if self._keeping:
            await asyncio.wait({self._keeping}, timeout=_PATIENCE)

    async def _store(self, arguments: str, _: float) -> Any:
        asked = msgspec.json.decode(arguments, type=_Store)
        asked.text = self._knowledge.redact(asked.text)
        if not self._person.user:
            return {"error": "Nobody knows who the caller is, so nothing can be kept."}
        key, known = secrets.token_hex(8), await self._known()
        named = _named(asked.text, known) or fact_id(self._person, key, asked.text)
        former = _named(self._knowledge.redact(asked.replaces or ""), known)
        learnt = FactDraft(text=asked.text, category=asked.category, replaces=former)
        # As of now: whoever is forgotten meanwhile stays so.
        work = partial(self._knowledge.add, self._person, learnt, key=key, at=time.time())
        self._owed.append(_Owed(named, work, known.get(named, asked.text)))
        told: dict[str, Any] = {"stored": True, "id": named}
        if former == named or not asked.replaces:
            return told
        if former:
            self._owed.append(_Owed(former, None))
        return {**told, "replaced": former is not None}

    async def _recall(self, arguments: str, until: float) -> Any:
        asked = msgspec.json.decode(arguments, type=_Recall)
        query = Query(text=asked.query, now=time.time(), limit=_MOST_FOUND, zone=self._zone)
        owed = {one.id: one.text for one in self._changes}
        within = until - asyncio.get_running_loop().time()
        known = await self._finder.search(self._person, query, within=within)
        found = [one for one in known if one.source not in owed and not self._was_not_said(one)]
        new = [{"text": text, "kind": "fact", "id": fact} for fact, text in owed.items() if text is not None]
        told = [*new, *(_told(one, self._zone) for one in found)]
        return {"found": [{**one, "text": self._shown(one["text"])} for one in told]}

    def _was_not_said(self, one: SearchResult) -> bool:
        return one.kind == "turn" and self._unsaid.includes(one.session_id, one.text)

    async def _forget(self, arguments: str, _: float) -> Any:
        asked = msgspec.json.decode(arguments, type=_Forget)
        name = _named(asked.id, await self._known())
        if name is None:
            return {"forgotten": False}
        self._owed = [one for one in self._owed if one.id != name]
        self._owed.append(_Owed(name, partial(self._knowledge.remove, self._person, name)))
        return {"forgotten": True}

    @property
    def _changes(self) -> list[_Owed]:
        """All that the model was told of in this turn: what has been begun may be yet to be found."""
        return [*self._begun, *self._owed]

    async def _known(self) -> dict[str, str]:
        """What is known by its id, as it will be."""
        known = {fact.id: fact.text for fact in await self._knowledge.current(self._person)}
        for one in self._changes:
            known.pop(one.id, None)
            if one.text is not None:
                known[one.id] = one.text
        return known


def _named(words: str, known: Mapping[str, str]) -> str | None:
    """The id of what is known under an id, or in such words."""
    if words in known:
        return words
    said = comparable(words)
    return next((name for name, text in known.items() if comparable(text) == said), None)


def _told(found: SearchResult, zone: tzinfo) -> dict[str, Any]:
    told: dict[str, Any] = {"text": found.text, "kind": found.kind}
    if found.kind == "fact":
        told["id"] = found.source
    if found.role:
        told["said_by"] = found.role
    if found.timestamp:
        told["on"] = f"{datetime.fromtimestamp(found.timestamp, zone):%Y-%m-%d}"
    return told
