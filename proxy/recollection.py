"""What memory tells of a turn: asked all at once, under the stores' own deadline."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from filters.base import Snapshot
from proxy.lately import lately
from proxy.memory import recall
from proxy.memory.store import Key, Store, StoreError
from proxy.pipeline import Pipeline
from proxy.session import Identity
from proxy.wire import Call

T = TypeVar("T")
Lacking = Callable[[str], None]
"""Told by name of what could not be remembered."""

_log = logging.getLogger("turnkeeper")


async def recollect(call: Call, pipeline: Pipeline, who: Identity, lacking: Lacking) -> tuple[Call, Snapshot]:
    """What is remembered, and the call with its interrupted answers marked; a dead memory costs neither."""
    if pipeline.memory is None or who.background:
        return call, Snapshot()
    aside = _aside(call, pipeline, who)
    if not aside:
        return await _of_session(call, pipeline, who, lacking)
    names = [*aside]
    (call, known), *found = await asyncio.gather(
        _of_session(call, pipeline, who, lacking), *(_or_none(name, aside[name], lacking) for name in names)
    )
    told = {name: value for name, value in zip(names, found, strict=True) if value is not None}
    return call, msgspec.structs.replace(known, **told)


def _aside(call: Call, pipeline: Pipeline, who: Identity) -> Mapping[str, Awaitable[Any]]:
    """What the chain wants to know beside the session, by the snapshot's names."""
    wanted: dict[str, Awaitable[Any]] = {}
    if pipeline.memory and pipeline.lately:
        episodes, now = pipeline.memory.episodes, time.time()
        wanted["episodes"] = lately(pipeline.lately, episodes, call, tenant=who.tenant, now=now)
    return wanted


async def _of_session(
    call: Call, pipeline: Pipeline, who: Identity, lacking: Lacking
) -> tuple[Call, Snapshot]:
    if pipeline.memory is None or who.key is None:
        return call, Snapshot()
    found = await _or_none("memory", _read(call, pipeline, pipeline.memory.store, who.key), lacking)
    if found and pipeline.memory.recorder.lags(who.key):  # what is not written yet is not remembered either
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
