"""What memory adds to a turn: the session, facts, recalled passages, recent episodes and the memory tools."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from filters.base import Fields, Snapshot
from filters.message import newest_words
from filters.redact import Redact
from filters.remembered import Episode, Remembered
from proxy.memory.archive.records import Fact
from proxy.memory.episodes.episodes import Episodes
from proxy.memory.errors import StoreError
from proxy.memory.facts.prompt import prompt_facts
from proxy.memory.memory import Memory
from proxy.memory.merge.turn import is_weighty, overgrows
from proxy.memory.session import Session, ShownFacts
from proxy.memory.stores.store import Key, Owner
from proxy.memory.tasks import in_thread_if_long
from proxy.memory.view import RequestView, RetractedTexts, SessionView, read_session
from proxy.tools import offer_tools
from proxy.tools.dialogue import Tools
from proxy.tools.memory_tools import MemoryTools
from proxy.turn import identity
from proxy.turn.identity import Identity
from proxy.turn.pipeline import EpisodeLookup, Pipeline
from proxy.turn.request import ClientRequest

T = TypeVar("T")
Lacking = Callable[[str], None]
"""Told by name of what could not be remembered."""
_log = logging.getLogger("turnkeeper")
_FACTS = "facts"
_RECALLED = "recalled"


class Aside(NamedTuple):
    """Something that the chain wants to know beside the session, and that takes a while.

    ``field`` is its place in the snapshot, ``name`` what is reported where it cannot be known.
    """

    field: str
    name: str
    ask: Callable[[], Awaitable[Any]]


class Recollected(NamedTuple):
    """What is remembered, and the call as it was ``heard``: with its interrupted answers marked.

    ``told`` is which facts stand at the head of the prompt, and ``read`` what was read, for the session to
    keep and to go on from; ``epoch`` is ``None`` where the session could not be read.
    """

    heard: ClientRequest
    snapshot: Snapshot = Snapshot()
    epoch: bytes | None = None
    told: ShownFacts | None = None
    read: SessionView | None = None

    def unsaid(self, who: Identity) -> RetractedTexts:
        """What of this talk the archive may tell as said, and was not."""
        read = self.read
        return RetractedTexts(who.session, read.session, read.alignment) if read else RetractedTexts()


async def recollect(call: ClientRequest, pipeline: Pipeline, who: Identity, lacking: Lacking) -> Recollected:
    """What is remembered of a turn; a dead memory costs neither the call nor the rest."""
    memory = pipeline.memory
    if memory is None or who.background:
        return Recollected(call)
    facts = _facts_at_once(pipeline, memory, who)
    known = facts is not None
    aside = [*_of_agent(call, pipeline, memory, who), *_of_person(call, pipeline, memory, who, known=known)]
    ask = _of_session(call, pipeline, memory, who, lacking)
    if not aside:  # a task would cost more than it saves
        return _with_facts(await ask, facts, pipeline, who)
    recollected, *found = await asyncio.gather(
        ask, *(_or_none(each.name, each.ask, lacking) for each in aside)
    )
    told = {each.field: value for each, value in zip(aside, found, strict=True) if value is not None}
    facts = told.pop(_FACTS, facts)
    return _with_facts(_with_aside(recollected, told, who), facts, pipeline, who)


def _with_aside(recollected: Recollected, told: dict[str, Any], who: Identity) -> Recollected:
    """What is remembered, with what was asked beside the session: fields of the snapshot."""
    if not told:
        return recollected
    if told.get(_RECALLED):
        told = {**told, _RECALLED: _heard(told[_RECALLED], recollected.unsaid(who))}
    return recollected._replace(snapshot=msgspec.structs.replace(recollected.snapshot, **told))


def _heard(recalled: Sequence[Remembered], unsaid: RetractedTexts) -> tuple[Remembered, ...]:
    return tuple(one for one in recalled if one.kind != "turn" or not unsaid.includes(one.source, one.text))


def _with_facts(
    recollected: Recollected, facts: Sequence[Fact] | None, pipeline: Pipeline, who: Identity
) -> Recollected:
    """What is remembered, with the facts about the person, where the chain tells of any."""
    if facts is None:
        return recollected
    session = recollected.read.session if recollected.read else Session()
    person, now = who.user or "", time.time()
    found = prompt_facts(session, recollected.epoch or b"", person, facts, limit=pipeline.max_facts, now=now)
    snapshot = recollected.snapshot
    if found.head or found.tail:
        snapshot = msgspec.structs.replace(snapshot, facts=found.facts, news=found.news)
    told = None if recollected.epoch is None else found.shown
    return recollected._replace(snapshot=snapshot, told=told)


def _of_agent(call: ClientRequest, pipeline: Pipeline, memory: Memory, who: Identity) -> Iterator[Aside]:
    if pipeline.episode_lookup:
        ask = partial(
            recent_episodes,
            pipeline.episode_lookup,
            memory.episodes,
            call,
            tenant=who.tenant,
            now=time.time(),
        )
        yield Aside("episodes", "episodes", ask)


def _of_person(
    call: ClientRequest, pipeline: Pipeline, memory: Memory, who: Identity, *, known: bool
) -> Iterator[Aside]:
    """The facts about a person, where they are not known yet, and what is recalled for the newest words."""
    if memory.archiving is None or not who.user:
        return
    person = Owner(who.tenant, who.user)
    if pipeline.max_facts and who.session and not known:
        yield Aside(_FACTS, "facts", partial(memory.archiving.fact_reader.read, person))
    if pipeline.max_recalled:
        words, of = newest_words(call.messages), memory.archiving.recall.search
        ask = partial(of, person, words, now=time.time(), limit=pipeline.max_recalled, zone=pipeline.zone)
        yield Aside(_RECALLED, "recall", ask)


def _facts_at_once(pipeline: Pipeline, memory: Memory, who: Identity) -> Sequence[Fact] | None:
    """The facts about a person where nobody has to wait for them, and the chain tells of them."""
    if not (pipeline.max_facts and memory.archiving and who.user and who.session):
        return None
    return memory.archiving.fact_reader.read_nowait(Owner(who.tenant, who.user))


async def _of_session(
    call: ClientRequest, pipeline: Pipeline, memory: Memory, who: Identity, lacking: Lacking
) -> Recollected:
    key = who.key
    if key is None:
        return Recollected(call)
    found = await _or_none("memory", partial(_read, call, pipeline, memory, key), lacking)
    if found is None:
        return Recollected(call)
    # What is not written yet, or never will be, is not remembered either.
    overgrown: bool | None = False
    if found.read and is_weighty(found.read):
        overgrown = await _or_none("memory", partial(_overgrows, found.read, memory, call), lacking)
    if overgrown or memory.recorder.is_behind(key):
        lacking("memory")
    return found


async def _overgrows(read: SessionView, memory: Memory, call: ClientRequest) -> bool:
    """Whether memory will not take this turn: it is too long."""
    work = partial(overgrows, read, memory.writer.window, identity.attempt_of(call), now=time.time())
    return await in_thread_if_long(work, len(read.session.entries) + len(read.speech.lines))


async def _read(call: ClientRequest, pipeline: Pipeline, memory: Memory, key: Key) -> Recollected:
    sight = RequestView(call.messages, identity.attempt_of(call), memory.veil)
    read, known = await read_session(memory.store, key, sight, pipeline.view_options)
    heard = known.window
    call = call if heard is call.messages else msgspec.structs.replace(call, messages=heard)
    return Recollected(call, known.snapshot, known.epoch, read=read)


async def _or_none(name: str, ask: Callable[[], Awaitable[T]], lacking: Lacking) -> T | None:
    try:
        return await ask()
    except Exception as error:  # noqa: BLE001 - whatever ails memory, the caller gets an answer
        if not isinstance(error, StoreError):
            _log.error("Memory cannot be read (%s): %s", name, type(error).__name__)
        lacking(name)
        return None


async def recent_episodes(
    asked: EpisodeLookup, episodes: Episodes, call: ClientRequest, *, tenant: str, now: float
) -> tuple[Episode, ...]:
    """The newest first; none for a call that names no agent. Raises StoreError."""
    agent = asked.agent or identity.first_id(call, (asked.place,))
    if agent is None:
        return ()
    since = now - 3600 * asked.hours
    recent = await episodes.recent(Key(tenant, agent), since=since, limit=asked.limit)
    return tuple(one.episode for one in recent)


def offer_memory_tools(
    fields: Fields, pipeline: Pipeline, who: Identity, unsaid: RetractedTexts | None = None
) -> Tools | None:
    """The pipeline's memory tools: in every request of a session, and in none without one.

    What is ``unsaid`` they do not find.
    """
    archiving = pipeline.memory.archiving if pipeline.memory else None
    if not pipeline.tools or archiving is None or who.key is None:
        return None
    offer = offer_tools(fields, pipeline.tools)
    if offer is None:
        return None
    person = Owner(who.tenant, who.user or "")
    known, found = archiving.facts, archiving.retriever
    notebook = MemoryTools(
        person, known, found, pipeline.zone, archiving.pending_changes, unsaid=unsaid, shown=_shown(pipeline)
    )
    return Tools(offer, notebook, pipeline.tool_rounds)


def _shown(pipeline: Pipeline) -> Callable[[str], str]:
    """A text that a tool found, as the pipeline's model may see it."""
    steps = [each for each in pipeline.filters if isinstance(each, Redact) and "tool" in each.roles]

    def shown(text: str) -> str:
        for step in steps:
            text = step.text(text)
        return text

    return shown
