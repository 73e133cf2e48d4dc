"""How the server is: what it talks to, what waits, and a tenant's figures of the last hour."""

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.responses import Response

from proxy.memory.errors import StoreError
from proxy.memory.memory import Memory
from proxy.observe.hour import MinuteStats
from proxy.observe.observation import TurnReport
from proxy.page.paper import took
from proxy.page.plot import HEIGHT, WIDTH, Plot, bars, lines
from proxy.page.room import Room
from proxy.target import Target

_HERE: Final = "health"


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """An upstream, the pipelines that use it, and how a tenant's newest turns at it ended.

    ``breakers`` are those of its models that are not closed, as far as the tenant knows the models.
    """

    name: str
    kind: str
    model: str
    pipelines: Sequence[str]
    turns: int
    failed: int
    last: str | None
    breakers: Mapping[str, str]


class Remembering(msgspec.Struct, frozen=True, kw_only=True):
    """Memory now. ``answers`` tells how long it took to be asked, or why it could not be."""

    answers: bool
    said: str
    failing: bool


async def _shown(room: Room) -> Response:
    recent = [trace.account for trace in room.server.traces.newest(room.tenant)]
    now = time.time()
    memory = await _memory(room.parts.memory)
    minutes = room.server.traces.hour.minutes(now, room.tenant)
    values: dict[str, Any] = {
        "ways": _ways(room, recent),
        "memory": memory,
        "plots": _plots(minutes),
        "turns": sum(minute.turns for minute in minutes),
        "phase": _phase(room, memory),
        "standing": room.server.standing() if room.alone else None,
        "kept": len(recent),
        "keeps": room.server.traces.keeping.turns,
        "size": (WIDTH, HEIGHT),
        "now": now,
    }
    if room.headers.get("x-part"):
        return await room.fragment("figures.html", **values)
    return await room.page("health.html", _HERE, **values)


def _phase(room: Room, memory: Remembering | None) -> str:
    """What ``/readyz`` says, and at once what this page has just found out of memory."""
    standing = room.parts.standing(room.server.phase)
    return "degraded" if standing == "ready" and memory and not memory.answers else standing


def _ways(room: Room, recent: Sequence[TurnReport]) -> Sequence[Way]:
    targets = {target.name: target for each in room.parts.pipelines.values() for target in each.targets}
    own = None if room.alone else {model for each in recent for model in (each.wanted, each.model)}
    return [
        Way(
            name=name,
            kind=target.kind.name,
            model=target.model or "as asked",
            pipelines=[p.name for p in room.parts.pipelines.values() if target in p.targets],
            turns=sum(each.upstream == name for each in recent),
            failed=sum(each.upstream == name and each.state == "failed" for each in recent),
            last=next((each.state for each in recent if each.upstream == name), None),
            breakers=_breakers(target, own),
        )
        for name, target in targets.items()
    ]


def _breakers(target: Target, own: Collection[str | None] | None) -> Mapping[str, str]:
    """Those that are not closed; of what clients may call models, ``own`` alone where that is given."""
    return {
        model: state
        for model, state in target.health.states().items()
        if state != "closed" and (own is None or model == target.model or model in own)
    }


async def _memory(memory: Memory | None) -> Remembering | None:
    if memory is None:
        return None
    began = time.perf_counter()
    try:
        await memory.store.ping()
    except StoreError as error:
        answers, said = False, str(error)
    else:
        answers, said = True, f"answers in {took(time.perf_counter() - began)}"
    return Remembering(answers=answers, said=said, failing=memory.degraded)


def _plots(minutes: Sequence[MinuteStats]) -> Sequence[Plot]:
    turns = [float(minute.turns) for minute in minutes]
    firsts = [minute.first_token(0.5) for minute in minutes]
    slow = [minute.first_token(0.95) for minute in minutes]
    failed = [float(minute.ended.get("failed", 0)) for minute in minutes]
    cut = [float(minute.ended.get("interrupted", 0) + minute.ended.get("cancelled", 0)) for minute in minutes]
    left = [float(minute.ended.get("degraded", 0)) for minute in minutes]
    return [
        _counted("Turns", "a minute", turns),
        _timed("First token, median", firsts),
        _timed("First token, 95 of 100", slow),
        _counted("Failed", "turns a minute", failed, alarm=True),
        _counted("Left or superseded", "turns a minute", cut),
        _counted("With something left out", "turns a minute", left, alarm=True),
    ]


def _counted(title: str, what: str, values: Sequence[float], *, alarm: bool = False) -> Plot:
    most = max(values)
    return Plot(
        title=title, what=what, last=f"{values[-1]:.0f}", most=f"{most:.0f}", bars=bars(values), alarm=alarm
    )


def _timed(title: str, values: Sequence[float | None]) -> Plot:
    known = [value for value in values if value is not None]
    return Plot(
        title=title,
        what="from a request's arrival",
        last=took(known[-1]) if known else "-",
        most=took(max(known)) if known else "-",
        lines=lines(values),
    )


ROUTES: Final = (("GET", "/health", _shown),)
