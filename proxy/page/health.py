"""Figures of an hour as a small picture."""

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.responses import Response

from proxy.memory.errors import StoreError
from proxy.memory.memory import Memory
from proxy.observe.hour import MinuteStats
from proxy.observe.observation import TurnReport
from proxy.page.renderer import took
from proxy.page.request import PageRequest
from proxy.upstream.target import Target

WIDTH, HEIGHT = 300, 56
_HERE: Final = "health"


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """One figure over time. ``points`` are for a line, gaps left out; ``bars`` are x, y, width, height."""

    title: str
    what: str
    last: str
    most: str
    lines: Sequence[str] = ()
    bars: Sequence[tuple[float, float, float, float]] = ()
    alarm: bool = False


def bars(values: Sequence[float]) -> Sequence[tuple[float, float, float, float]]:
    """A bar for each value that is not none, as high as it is large."""
    most = max(values, default=0) or 1
    step = WIDTH / max(1, len(values))
    return [
        (round(i * step + 0.5, 2), round(HEIGHT - value / most * HEIGHT, 2), round(step - 1, 2), height)
        for i, value in enumerate(values)
        if (height := round(value / most * HEIGHT, 2))
    ]


def lines(values: Sequence[float | None], most: float | None = None) -> Sequence[str]:
    """Points for each run of values in a row; a value alone is a short line."""
    top = most or max((value for value in values if value is not None), default=0) or 1
    step = WIDTH / max(1, len(values))
    runs: list[list[str]] = [[]]
    for i, value in enumerate(values):
        if value is None:
            runs.append([])
            continue
        y = round(HEIGHT - 1 - value / top * (HEIGHT - 2), 2)
        runs[-1] += [f"{i * step:.1f},{y}", f"{(i + 1) * step:.1f},{y}"]
    return [" ".join(run) for run in runs if run]


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


async def _shown(request: PageRequest) -> Response:
    recent = [trace.report for trace in request.server.traces.newest(request.tenant)]
    now = time.time()
    memory = await _memory(request.runtime.memory)
    minutes = request.server.traces.hour.minutes(now, request.tenant)
    values: dict[str, Any] = {
        "ways": _ways(request, recent),
        "memory": memory,
        "plots": _plots(minutes),
        "turns": sum(minute.turns for minute in minutes),
        "phase": _phase(request, memory),
        "standing": request.server.gauges() if request.is_only_tenant else None,
        "kept": len(recent),
        "keeps": request.server.traces.retention.turns,
        "size": (WIDTH, HEIGHT),
        "now": now,
    }
    if request.headers.get("x-part"):
        return await request.fragment("figures.html", **values)
    return await request.page("health.html", _HERE, **values)


def _phase(request: PageRequest, memory: Remembering | None) -> str:
    """What ``/readyz`` says, and at once what this page has just found out of memory."""
    standing = request.runtime.status(request.server.phase)
    return "degraded" if standing == "ready" and memory and not memory.answers else standing


def _ways(request: PageRequest, recent: Sequence[TurnReport]) -> Sequence[Way]:
    targets = {target.name: target for each in request.runtime.pipelines.values() for target in each.targets}
    own = (
        None
        if request.is_only_tenant
        else {model for each in recent for model in (each.primary_model, each.model)}
    )
    return [
        Way(
            name=name,
            kind=target.provider.name,
            model=target.model or "as asked",
            pipelines=[p.name for p in request.runtime.pipelines.values() if target in p.targets],
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
    failed = [float(minute.states.get("failed", 0)) for minute in minutes]
    cut = [
        float(minute.states.get("interrupted", 0) + minute.states.get("cancelled", 0)) for minute in minutes
    ]
    left = [float(minute.states.get("degraded", 0)) for minute in minutes]
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
