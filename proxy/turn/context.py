"""What memory adds to a turn: the session, facts, recalled passages, recent episodes and the memory tools."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from filters.base import Context, Fields, Snapshot
from filters.message import newest_words
from filters.redact import Redact
from filters.tokens import in_text
from proxy.clock import wall_time
from proxy.memory.archive.records import Fact
from proxy.memory.errors import StoreError
from proxy.memory.facts.prompt import prompt_facts
from proxy.memory.memory import Memory
from proxy.memory.session import Session
from proxy.memory.stores.store import Key, Owner
from proxy.memory.tasks import Begun, in_thread_if_long
from proxy.memory.turn_record import may_overgrow, overgrows
from proxy.memory.view import RequestView, RetractedTexts, read_session
from proxy.observe.observation import NO_SESSION
from proxy.tools.memory_tools import MemoryTools, offer_tools
from proxy.tools.rounds import Tools
from proxy.turn.identity import Identity, find_id, is_from_platform
from proxy.turn.pipeline import Pipeline
from proxy.turn.state import Turn

T = TypeVar("T")
OnMissing = Callable[[str], None]
"""Called with the name of what memory could not provide."""
_log = logging.getLogger("turnkeeper")
# So many have room in each prompt.
_FEW_FACTS = 5


async def read_memory(turn: Turn, on_missing: OnMissing) -> None:
    """Fills ``context`` and, where there is a session, ``window``, ``view`` and ``shown_facts``.

    All stores are read at once, each under its own deadline. What fails is reported to ``on_missing``, and
    the turn goes on without it. A window with more speech than memory takes in is not to be recorded: then
    ``key`` becomes ``None``.
    """
    memory = turn.pipeline.memory
    if memory is None or turn.identity.background:
        snapshot = Snapshot()
    elif not turn.is_memorable:
        if turn.key or turn.identity.user:
            on_missing("memory")
        turn.key, snapshot = None, Snapshot()
    else:
        if turn.key is None and is_from_platform(turn.request):
            on_missing(NO_SESSION)
        snapshot = await _read_snapshot(turn, memory, on_missing)
    turn.context = filter_context(turn.identity, snapshot, turn.pipeline, now=wall_time())


def filter_context(identity: Identity, snapshot: Snapshot, pipeline: Pipeline, *, now: float) -> Context:
    """The context that filters are handed."""
    return Context(
        now=now,
        tenant=identity.tenant,
        session=identity.session,
        user=identity.user,
        memory=snapshot,
        count=pipeline.token_counter.count if pipeline.token_counter else in_text,
    )


async def _read_snapshot(turn: Turn, memory: Memory, on_missing: OnMissing) -> Snapshot:
    pipeline, identity = turn.pipeline, turn.identity
    facts: Sequence[Fact] | None = None
    facts_later: Begun[Sequence[Fact] | None] | None = None
    lookups = _side_lookups(turn, memory) if pipeline.episode_lookup or pipeline.max_recalled else {}
    if memory.facts and pipeline.max_facts and identity.user and identity.session:
        user = Owner(identity.tenant, identity.user)
        facts = memory.facts.reader.read_nowait(user)
        if facts is None:
            facts_later = Begun(_or_none("facts", partial(memory.facts.reader.read, user), on_missing))
    if pipeline.max_recalled and memory.archiving is None:
        on_missing("recall")

    if not lookups:  # a task would cost more than it saves
        snapshot, epoch = await _read_session(turn, memory, on_missing)
    else:
        (snapshot, epoch), *results = await asyncio.gather(
            _read_session(turn, memory, on_missing),
            *(_or_none(name, query, on_missing) for name, query in lookups.items()),
        )
        found, retracted = dict(zip(lookups, results, strict=True)), turn.retracted_texts
        snapshot = msgspec.structs.replace(
            snapshot,
            episodes=tuple(one.episode for one in found.get("episodes") or ()),
            recalled=tuple(
                one
                for one in found.get("recall") or ()
                if one.kind != "turn" or not retracted.includes(one.source, one.text)
            ),
        )

    if facts_later:
        facts = await facts_later
    if facts is not None:
        session = turn.view.session if turn.view else Session()
        limit, now = pipeline.max_facts, wall_time()
        prompt = prompt_facts(
            session,
            epoch or b"",
            identity.user or "",
            facts,
            limit=limit,
            now=now,
            max_tokens=pipeline.max_fact_tokens,
            words=newest_words(turn.request.messages) if len(facts) > _FEW_FACTS else "",
            zone=pipeline.zone,
        )
        if prompt.head or prompt.tail:
            snapshot = msgspec.structs.replace(snapshot, facts=prompt.facts, news=prompt.news)
        turn.shown_facts = None if epoch is None else prompt.shown_facts
    return snapshot


def _side_lookups(turn: Turn, memory: Memory) -> dict[str, Callable[[], Awaitable[Any]]]:
    """The queries besides the session: recent episodes, and passages that match the newest words."""
    pipeline, identity, now = turn.pipeline, turn.identity, wall_time()
    lookups: dict[str, Callable[[], Awaitable[Any]]] = {}
    if lookup := pipeline.episode_lookup:
        agent = lookup.agent or find_id(turn.request, (lookup.place,))[0]
        if agent is not None:
            key, since = Key(identity.tenant, agent), now - 3600 * lookup.hours
            lookups["episodes"] = partial(memory.episodes.recent, key, since=since, limit=lookup.limit)
    if pipeline.max_recalled and memory.archiving and identity.user:
        user, words = Owner(identity.tenant, identity.user), newest_words(turn.request.messages)
        limit, zone = pipeline.max_recalled, pipeline.zone
        search = memory.archiving.recall.search
        lookups["recall"] = partial(search, user, words, now=now, limit=limit, zone=zone)
    return lookups


async def _read_session(turn: Turn, memory: Memory, on_missing: OnMissing) -> tuple[Snapshot, bytes | None]:
    """Fills ``view`` and ``window``; returns the session's snapshot, and its epoch if it could be read."""
    key = turn.key
    if key is None:
        return Snapshot(), None
    recorder, store = memory.recorder, memory.store
    applied = recorder.is_written(key) or await recorder.wait_applied(key, within=store.deadline)
    request = RequestView(turn.request.messages, turn.attempt, memory.redaction, turn.size, wall_time())
    try:
        view, prompt = await read_session(store, key, request, turn.pipeline.chain_needs)
    except Exception as error:  # noqa: BLE001 - whatever fails in memory, the client gets an answer
        _report("memory", error, on_missing)
        return Snapshot(), None
    turn.view, turn.window = view, prompt.window
    snapshot = prompt.snapshot
    if turn.pipeline.tells_last_call and turn.identity.user:
        # The user's last call: as the session's own call told it first, else as it is read.
        shown = view.session.shown_call
        if shown is None or (shown.call, shown.user) != (view.call, turn.identity.user):
            needs = turn.pipeline.chain_needs
            user, remembers = Owner(key.tenant, turn.identity.user), needs.summaries or needs.history
            query = partial(memory.calls.shown_call, user, view, key.session, remembers=remembers)
            shown = turn.shown_call = await _or_none("last_call", query, on_missing)
        if shown is not None and (shown.profile or shown.last_call):
            snapshot = msgspec.structs.replace(snapshot, profile=shown.profile, last_call=shown.last_call)
    # What the session was read without, what is not written yet, or never will be, is not remembered either.
    overgrown: bool | None = False
    if may_overgrow(view):
        work = partial(overgrows, view, memory.writer.limits, turn.attempt, now=wall_time())
        lines = len(view.session.entries) + len(view.speech.lines)
        overgrown = await _or_none("memory", partial(in_thread_if_long, work, lines), on_missing)
    if overgrown or not applied or store.has_lost_write(key) or recorder.is_behind(key):
        on_missing("memory")
    return snapshot, prompt.epoch


async def _or_none(name: str, query: Callable[[], Awaitable[T]], on_missing: OnMissing) -> T | None:
    try:
        return await query()
    except Exception as error:  # noqa: BLE001 - whatever fails in memory, the client gets an answer
        _report(name, error, on_missing)
        return None


def _report(name: str, error: Exception, on_missing: OnMissing) -> None:
    if not isinstance(error, StoreError):
        _log.error("Memory cannot be read (%s): %s", name, type(error).__name__)
    on_missing(name)


def offer_memory_tools(
    fields: Fields,
    pipeline: Pipeline,
    identity: Identity,
    retracted: RetractedTexts | None = None,
    *,
    at: float,
) -> Tools | None:
    """The pipeline's memory tools; ``None`` without a session, or where the request cannot have them.

    ``at`` is when the request arrived, in seconds since 1970. Results leave out what was ``retracted``, and
    are redacted as the pipeline redacts tool results.
    """
    memory = pipeline.memory
    if (
        not pipeline.tools
        or memory is None
        or memory.facts is None
        or memory.search is None
        or identity.key is None
    ):
        return None
    offer = offer_tools(fields, pipeline.tools)
    if offer is None:
        return None
    redactions = [step for step in pipeline.filters if isinstance(step, Redact) and "tool" in step.roles]

    def redact(text: str) -> str:
        for step in redactions:
            text = step.text(text)
        return text

    runner = MemoryTools(
        Owner(identity.tenant, identity.user or ""),
        memory.facts.users,
        memory.search,
        pipeline.zone,
        memory.facts.pending_changes,
        at=at,
        retracted=retracted,
        redact=redact,
    )
    return Tools(offer, runner, pipeline.tool_rounds)
