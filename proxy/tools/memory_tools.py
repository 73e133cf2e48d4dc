"""The memory tools: their definitions, the request that offers them, and their effects for a turn's user."""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from filters.base import Fields
from filters.injection import comparable
from proxy.answer.transcript import object_in
from proxy.clock import wall_time
from proxy.memory.archive.recall import Searcher
from proxy.memory.archive.records import Category, Query
from proxy.memory.errors import StoreError
from proxy.memory.facts.user_facts import (
    FactChange,
    FactDraft,
    PendingChanges,
    UserFacts,
    fact_id,
    is_instruction,
)
from proxy.memory.stores.store import Owner
from proxy.memory.view import RetractedTexts

_MAX_RESULTS: Final = 8
_MAX_CALLS: Final = 20
"""How many calls of one turn run: a server that shuts down has time for this number of changes."""
_SETTLE_TIMEOUT: Final = 0.5
"""How many seconds the end of an answer may wait for the changes."""

Text = Annotated[str, Meta(min_length=1, max_length=2000)]
STORE: Final = "memory_store"
RECALL: Final = "memory_recall"
FORGET: Final = "memory_forget"

_NONE: Final = msgspec.Raw(b'"none"')


def _function(name: str, description: str, properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": [*required]}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


TOOLS: Final[Mapping[str, Mapping[str, Any]]] = {
    STORE: _function(
        STORE,
        "Keep something about the user beyond this conversation. One fact a call, in a sentence of its own.",
        {
            "text": {"type": "string", "description": "The fact, understandable without the conversation."},
            "category": {
                "type": "string",
                "enum": ["core", "daily", "conversation"],
                "description": "core: lasting; daily: soon out of date; conversation: for this talk alone.",
            },
            "replaces": {
                "type": "string",
                "description": "What is known and no longer true because of it: its id, or its words.",
            },
        },
        "text",
    ),
    RECALL: _function(
        RECALL,
        "Look up what is known of the user from earlier conversations.",
        {"query": {"type": "string", "description": "What is to be found, in a few words."}},
        "query",
    ),
    FORGET: _function(
        FORGET,
        "Delete one thing that is known of the user, at the user's wish.",
        {"id": {"type": "string", "description": "Its id, or its words as they were told."}},
        "id",
    ),
}


class Offer(msgspec.Struct, frozen=True):
    """A request's fields with memory tools added, and the names of these tools.

    ``final_fields`` are for the last round, in which the model may not call them, and ``client_fields`` those
    without them.
    """

    fields: Fields
    names: frozenset[str]
    final_fields: Fields
    client_fields: Fields


def offer_tools(fields: Fields, names: Sequence[str]) -> Offer | None:
    """Adds the named memory tools to a request; ``None`` where it cannot have any.

    A client's tool with the same name takes precedence. A request for several choices gets no memory tools,
    and neither does one with ``functions``, the deprecated form of tools.
    """
    theirs = _decoded(fields.get("tools"), [])
    if not isinstance(theirs, list) or "functions" in fields or _decoded(fields.get("n"), 1) != 1:
        return None
    objects = [tool for tool in theirs if isinstance(tool, dict)]
    taken = [(object_in(tool, "function") or object_in(tool, "custom")).get("name") for tool in objects]
    offered = [name for name in names if name not in taken]
    if not offered:
        return None
    tools = msgspec.Raw(msgspec.json.encode([*theirs, *(TOOLS[name] for name in offered)]))
    extended = {**fields, "tools": tools}
    # A request that requires one of its own tools gets a last round with these alone.
    required = _decoded(fields.get("tool_choice"), "auto") == "required" and theirs
    final = fields if required else {**extended, "tool_choice": _NONE}
    return Offer(extended, frozenset(offered), final, fields)


def _decoded(raw: msgspec.Raw | None, default: Any) -> Any:
    if raw is None:
        return default
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return default if value is None else value


class _StoreArguments(msgspec.Struct):
    text: Text
    category: Category = "core"
    replaces: str | None = None


class _RecallArguments(msgspec.Struct):
    query: Text


class _ForgetArguments(msgspec.Struct):
    id: Text


class _FactChange(msgspec.Struct, frozen=True):
    """A pending change of a fact, which the model was told is made; ``text`` is ``None`` for a removal.

    ``work`` makes the change. It is ``None`` for a fact that another change replaces, and thereby removes.
    """

    id: str
    work: FactChange | None
    text: str | None = None


class MemoryTools:
    """Runs the tool calls of one turn; errors and timeouts become results for the model.

    ``at`` is the turn's arrival, in seconds since 1970. Changes are made once the answer has reached the
    client, but later calls already see them. Without a user's name nothing is stored. Days begin as in
    ``zone``. Results leave out ``retracted`` texts, and go through ``redact``.
    """

    def __init__(  # noqa: PLR0913 - whose it is, and what it works on
        self,
        user: Owner,
        facts: UserFacts,
        search: Searcher,
        zone: tzinfo = UTC,
        pending_changes: PendingChanges | None = None,
        *,
        at: float,
        retracted: RetractedTexts | None = None,
        redact: Callable[[str], str] = str,
    ) -> None:
        self._user = user
        self._at = at
        self._facts = facts
        self._search = search
        self._zone = zone
        self._pending_changes = pending_changes or PendingChanges()
        self._retracted = retracted or RetractedTexts()
        self._redact = redact
        self._calls = 0
        self._pending: list[_FactChange] = []
        self._committed: list[_FactChange] = []
        self._committing: asyncio.Task[None] | None = None

    async def run(self, name: str, arguments: str, until: float) -> str:
        """Runs a call; returns its result as JSON. ``until`` is its deadline, in loop time."""
        self._calls += 1
        tools = {STORE: self._store, RECALL: self._recall, FORGET: self._forget}
        result: Any
        try:
            if self._calls > _MAX_CALLS:
                result = {"error": f"This was not done: memory takes {_MAX_CALLS} calls in one turn."}
            else:
                async with asyncio.timeout_at(until):
                    result = await tools[name](arguments or "{}", until)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            result = {"error": f"The arguments cannot be used: {error}"}
        except (StoreError, TimeoutError):
            result = {"error": "Memory does not answer now. Go on without it."}
        return msgspec.json.encode(result).decode()

    @property
    def has_pending(self) -> bool:
        """Whether there are changes that ``commit`` has not begun to make."""
        return bool(self._pending)

    def commit(self) -> None:
        """Starts to make the changes, without waiting for them."""
        if self._pending:
            works = [change.work for change in self._pending if change.work]
            self._committing = self._pending_changes.start(works, after=self._committing)
            self._committed += self._pending
            self._pending = []

    async def settle(self) -> None:
        """Makes the changes; returns once they are made, or after half a second."""
        self.commit()
        if self._committing:
            await asyncio.wait({self._committing}, timeout=_SETTLE_TIMEOUT)

    async def _store(self, arguments: str, _: float) -> Any:
        draft = msgspec.json.decode(arguments, type=_StoreArguments)
        text = self._facts.redact(draft.text)
        if not self._user.user:
            return {"error": "Nobody knows who the caller is, so nothing can be kept."}
        if is_instruction(text):
            return {"error": "This tells an assistant what to do, and is no fact about the caller."}
        key, facts = secrets.token_hex(8), await self._current_facts()
        fact = _id_of(text, facts) or fact_id(self._user, key, text)
        former = _id_of(self._facts.redact(draft.replaces or ""), facts)
        # With the time of the request, so that a user who is erased meanwhile gets no new fact.
        work = partial(
            self._facts.add,
            self._user,
            FactDraft(text=text, category=draft.category, replaces=former),
            key=key,
            at=self._at,
        )
        self._pending.append(_FactChange(fact, work, facts.get(fact, text)))
        result: dict[str, Any] = {"stored": True, "id": fact}
        if former == fact or not draft.replaces:
            return result
        if former:
            self._pending.append(_FactChange(former, None))
        return {**result, "replaced": former is not None}

    async def _recall(self, arguments: str, until: float) -> Any:
        text = msgspec.json.decode(arguments, type=_RecallArguments).query
        query = Query(text=text, now=wall_time(), limit=_MAX_RESULTS, zone=self._zone, following=True)
        changed = {change.id: change.text for change in self._changes}
        within = until - asyncio.get_running_loop().time()
        found = await self._search.search(self._user, query, within=within)
        results: list[dict[str, Any]] = [
            {"text": text, "kind": "fact", "id": fact} for fact, text in changed.items() if text is not None
        ]
        for one in found:
            if one.kind == "turn" and self._retracted.includes(one.session_id, one.text):
                continue
            if one.source in changed:
                continue
            result: dict[str, Any] = {"text": one.text, "kind": one.kind}
            if one.kind == "fact":
                result["id"] = one.source
            if one.role:
                result["said_by"] = one.role
            if one.timestamp:
                result["on"] = f"{datetime.fromtimestamp(one.timestamp, self._zone):%Y-%m-%d}"
            results.append(result)
        return {"found": [{**result, "text": self._redact(result["text"])} for result in results]}

    async def _forget(self, arguments: str, _: float) -> Any:
        words = msgspec.json.decode(arguments, type=_ForgetArguments).id
        fact = _id_of(words, await self._current_facts())
        if fact is None:
            return {"forgotten": False}
        self._pending = [change for change in self._pending if change.id != fact]
        self._pending.append(_FactChange(fact, partial(self._facts.remove, self._user, fact)))
        return {"forgotten": True}

    @property
    def _changes(self) -> list[_FactChange]:
        """All changes of this turn, also those under way, which a search may not find yet."""
        return [*self._committed, *self._pending]

    async def _current_facts(self) -> dict[str, str]:
        """The texts of the user's facts by their ids, with this turn's changes."""
        facts = {fact.id: fact.text for fact in await self._facts.current(self._user)}
        for change in self._changes:
            facts.pop(change.id, None)
            if change.text is not None:
                facts[change.id] = change.text
        return facts


def _id_of(words: str, facts: Mapping[str, str]) -> str | None:
    """The id of the fact with this id or this text, or ``None``."""
    if words in facts:
        return words
    text = comparable(words)
    return next((id_ for id_, fact in facts.items() if comparable(fact) == text), None)
