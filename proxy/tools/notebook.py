"""The memory tools of one turn, carried out on what is known of its person."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, tzinfo
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from proxy.memory.archive.archive import Category, Found, Query
from proxy.memory.archive.finder import Finder
from proxy.memory.archive.lexicon import Scope
from proxy.memory.knowledge import Knowledge, Learnt
from proxy.memory.store import StoreError
from proxy.tools.offer import FORGET, RECALL, STORE

_MOST_FOUND: Final = 8

Text = Annotated[str, Meta(min_length=1, max_length=2000)]


class _Store(msgspec.Struct):
    text: Text
    category: Category = "core"


class _Recall(msgspec.Struct):
    query: Text


class _Forget(msgspec.Struct):
    id: Text


class Notebook:
    """Carries out tool calls for one person; what goes wrong is told to the model, in time.

    Of a person without a name nothing is kept. Days begin as in ``zone``.
    """

    def __init__(self, person: Scope, knowledge: Knowledge, finder: Finder, zone: tzinfo = UTC) -> None:
        self._person = person
        self._knowledge = knowledge
        self._finder = finder
        self._zone = zone
        self._tools: dict[str, Callable[[str, float], Awaitable[Any]]] = {
            STORE: self._store,
            RECALL: self._recall,
            FORGET: self._forget,
        }

    async def carry_out(self, name: str, arguments: str, until: float) -> str:
        """What the model is told, as JSON; memory may answer until then, in the loop's time."""
        try:
            async with asyncio.timeout_at(until):
                told = await self._tools[name](arguments or "{}", until)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            told = {"error": f"The arguments cannot be used: {error}"}
        except (StoreError, TimeoutError):
            told = {"error": "Memory does not answer now. Go on without it."}
        return msgspec.json.encode(told).decode()

    async def _store(self, arguments: str, _: float) -> Any:
        asked = msgspec.json.decode(arguments, type=_Store)
        if not self._person.person:
            return {"error": "Nobody knows who the caller is, so nothing can be kept."}
        fact = await self._knowledge.learn(self._person, Learnt(text=asked.text, category=asked.category))
        return {"stored": True, "id": fact.id}

    async def _recall(self, arguments: str, until: float) -> Any:
        asked = msgspec.json.decode(arguments, type=_Recall)
        query = Query(text=asked.query, now=time.time(), limit=_MOST_FOUND, zone=self._zone)
        within = until - asyncio.get_running_loop().time()
        found = await self._finder.search(self._person, query, within=within)
        return {"found": [_told(one, self._zone) for one in found]}

    async def _forget(self, arguments: str, _: float) -> Any:
        asked = msgspec.json.decode(arguments, type=_Forget)
        return {"forgotten": await self._knowledge.drop(self._person, asked.id)}


def _told(found: Found, zone: tzinfo) -> dict[str, Any]:
    told: dict[str, Any] = {"text": found.text, "kind": found.kind}
    if found.kind == "fact":
        told["id"] = found.source
    if found.role:
        told["said_by"] = found.role
    if found.timestamp:
        told["on"] = f"{datetime.fromtimestamp(found.timestamp, zone):%Y-%m-%d}"
    return told
