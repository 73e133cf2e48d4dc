"""What memory tells of a turn: asked all at once, under the stores' own deadline."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from filters.base import Snapshot
from filters.remembered import Remembered
from proxy import attempts
from proxy.lately import lately
from proxy.memory import recall
from proxy.memory.archive.archive import Fact
from proxy.memory.archive.lexicon import Scope
from proxy.memory.recall import Reading
from proxy.memory.store import Key, Store, StoreError
from proxy.memory.telling import telling
from proxy.memory.told import Told
from proxy.pipeline import Memory, Pipeline
from proxy.session import Identity
from proxy.wire import Call

T = TypeVar("T")
Lacking = Callable[[str], None]
"""Told by name of what could not be remembered."""

_log = logging.getLogger("turnkeeper")
_FACTS = "facts"


class Aside(NamedTuple):
    """Something that the chain wants to know beside the session.

    ``field`` is its place in the snapshot, ``name`` what is reported where it cannot be known. ``waits`` is
    whether it takes long enough to be asked beside all else.
    """

    field: str
    name: str
    ask: Callable[[], Awaitable[Any]]
    waits: bool = True


class Recollected(NamedTuple):
    """What is remembered, and the call with its interrupted answers marked.

    ``told`` is which facts stand at the head of the prompt, and ``read`` what was read, for the session to
    keep and to go on from.
    """

    call: Call
    memory: Snapshot = Snapshot()
    told: Told | None = None
    read: Reading | None = None


class _Held(NamedTuple):
    """What a session tells; ``epoch`` is ``None`` where it could not be read."""

    call: Call
    memory: Snapshot = Snapshot()
    epoch: bytes | None = None
    told: Told | None = None
    read: Reading | None = None


async def recollect(call: Call, pipeline: Pipeline, who: Identity, lacking: Lacking) -> Recollected:
    """What is remembered of a turn; a dead memory costs neither the call nor the rest."""
    memory = pipeline.memory
    if memory is None or who.background:
        return Recollected(call)
    aside = [*_of_agent(call, pipeline, memory, who), *_of_person(call, pipeline, memory, who)]
    ask = partial(_of_session, call, pipeline, memory, who, lacking)
    asides = [partial(_or_none, each.name, each.ask, lacking) for each in aside]
    if any(each.waits for each in aside):
        held, *found = await asyncio.gather(ask(), *(one() for one in asides))
    else:  # tasks would cost more than they save
        held, found = await ask(), [await one() for one in asides]
    told = {each.field: value for each, value in zip(aside, found, strict=True) if value is not None}
    facts = told.pop(_FACTS, None)
    if told:
        held = held._replace(memory=msgspec.structs.replace(held.memory, **told))
    if facts is None:
        return Recollected(held.call, held.memory, read=held.read)
    return _with_facts(held, facts, pipeline, who)


def _with_facts(held: _Held, facts: Sequence[Fact], pipeline: Pipeline, who: Identity) -> Recollected:
    now, limit = time.time(), pipeline.tells
    found = telling(held.told, held.epoch or b"", who.user or "", facts, limit=limit, now=now)
    known = msgspec.structs.replace(held.memory, facts=_shown(found.head), news=_shown(found.tail))
    return Recollected(held.call, known, None if held.epoch is None else found.told, held.read)


def _shown(facts: Sequence[Fact]) -> tuple[Remembered, ...]:
    return tuple(Remembered(kind="fact", text=fact.text, source=fact.id, at=fact.created) for fact in facts)


def _of_agent(call: Call, pipeline: Pipeline, memory: Memory, who: Identity) -> Iterator[Aside]:
    if pipeline.lately:
        ask = partial(lately, pipeline.lately, memory.episodes, call, tenant=who.tenant, now=time.time())
        yield Aside("episodes", "episodes", ask)


def _of_person(call: Call, pipeline: Pipeline, memory: Memory, who: Identity) -> Iterator[Aside]:
    """What is known of the person, and what of earlier talks and of documents bears on the newest words."""
    if memory.archiving is None or not who.user:
        return
    if pipeline.tells and who.key:
        known = memory.archiving.acquaintance
        yield Aside(_FACTS, "facts", partial(known.of, Scope(who.tenant, who.user)), known.waits)
    if pipeline.recalls:
        words = next((message.text for message in reversed(call.messages) if message.role == "user"), "")
        of, person = memory.archiving.recollection.of, Scope(who.tenant, who.user)
        ask = partial(of, person, words, now=time.time(), limit=pipeline.recalls, zone=pipeline.zone)
        yield Aside("recalled", "recall", ask)


async def _of_session(
    call: Call, pipeline: Pipeline, memory: Memory, who: Identity, lacking: Lacking
) -> _Held:
    if who.key is None:
        return _Held(call)
    found = await _or_none("memory", partial(_read, call, pipeline, memory.store, who.key), lacking)
    if found and memory.recorder.lags(who.key):  # what is not written yet is not remembered either
        lacking("memory")
    return found or _Held(call)


async def _read(call: Call, pipeline: Pipeline, store: Store, key: Key) -> _Held:
    read = await recall.reading(store, key, call.messages, attempts.of(call))
    known, heard, epoch = recall.known(read, call.messages, injecting=pipeline.injecting)
    call = call if heard is call.messages else msgspec.structs.replace(call, messages=heard)
    return _Held(call, known, epoch, read.session.told, read)


async def _or_none(name: str, ask: Callable[[], Awaitable[T]], lacking: Lacking) -> T | None:
    try:
        return await ask()
    except Exception as error:  # noqa: BLE001 - whatever ails memory, the caller gets an answer
        if not isinstance(error, StoreError):
            _log.error("Memory cannot be read (%s): %s", name, type(error).__name__)
        lacking(name)
        return None
