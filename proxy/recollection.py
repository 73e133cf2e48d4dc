"""What memory tells of a turn: asked all at once, under the stores' own deadline."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec

from filters.base import Snapshot
from proxy.lately import lately
from proxy.memory import recall
from proxy.memory.archive.lexicon import Scope
from proxy.memory.store import Key, Store, StoreError
from proxy.pipeline import Memory, Pipeline
from proxy.session import Identity
from proxy.wire import Call

T = TypeVar("T")
Lacking = Callable[[str], None]
"""Told by name of what could not be remembered."""

_log = logging.getLogger("turnkeeper")


class Aside(NamedTuple):
    """Something that the chain wants to know beside the session.

    ``field`` is its place in the snapshot, ``name`` what is reported where it cannot be known.
    """

    field: str
    name: str
    asked: Awaitable[Any]


async def recollect(call: Call, pipeline: Pipeline, who: Identity, lacking: Lacking) -> tuple[Call, Snapshot]:
    """What is remembered, and the call with its interrupted answers marked; a dead memory costs neither."""
    memory = pipeline.memory
    if memory is None or who.background:
        return call, Snapshot()
    aside = [*_of_agent(call, pipeline, memory, who), *_of_person(call, pipeline, memory, who)]
    if not aside:
        return await _of_session(call, pipeline, memory, who, lacking)
    (call, known), *found = await asyncio.gather(
        _of_session(call, pipeline, memory, who, lacking),
        *(_or_none(each.name, each.asked, lacking) for each in aside),
    )
    told = {each.field: value for each, value in zip(aside, found, strict=True) if value is not None}
    return call, msgspec.structs.replace(known, **told)


def _of_agent(call: Call, pipeline: Pipeline, memory: Memory, who: Identity) -> Iterator[Aside]:
    if pipeline.lately:
        asked = lately(pipeline.lately, memory.episodes, call, tenant=who.tenant, now=time.time())
        yield Aside("episodes", "episodes", asked)


def _of_person(call: Call, pipeline: Pipeline, memory: Memory, who: Identity) -> Iterator[Aside]:
    """What of earlier talks and of documents bears on the newest words."""
    if memory.archiving and pipeline.recalls and who.user:
        words = next((message.text for message in reversed(call.messages) if message.role == "user"), "")
        person, limit = Scope(who.tenant, who.user), pipeline.recalls
        asked = memory.archiving.recollection.of(person, words, now=time.time(), limit=limit)
        yield Aside("recalled", "recall", asked)


async def _of_session(
    call: Call, pipeline: Pipeline, memory: Memory, who: Identity, lacking: Lacking
) -> tuple[Call, Snapshot]:
    if who.key is None:
        return call, Snapshot()
    found = await _or_none("memory", _read(call, pipeline, memory.store, who.key), lacking)
    if found and memory.recorder.lags(who.key):  # what is not written yet is not remembered either
        lacking("memory")
    return found or (call, Snapshot())


async def _read(call: Call, pipeline: Pipeline, store: Store, key: Key) -> tuple[Call, Snapshot]:
    session = await recall.recall(store, key)
    known, heard = recall.known(session, call.messages, injecting=pipeline.injecting)
    return call if heard is call.messages else msgspec.structs.replace(call, messages=heard), known


async def _or_none(name: str, asked: Awaitable[T], lacking: Lacking) -> T | None:
    try:
        return await asked
    except Exception as error:  # noqa: BLE001 - whatever ails memory, the caller gets an answer
        if not isinstance(error, StoreError):
            _log.error("Memory cannot be read (%s): %s", name, type(error).__name__)
        lacking(name)
        return None
