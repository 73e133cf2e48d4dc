"""The health page: memory, upstreams, and a tenant's last hour as plots."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.responses import Response

from proxy.memory.errors import StoreError
from proxy.memory.memory import Memory
from proxy.observe.hour import MinuteStats
from proxy.observe.observation import NO_SESSION, SESSION_ADVICE, State, TurnReport
from proxy.page.renderer import took
from proxy.page.request import PageRequest

WIDTH, HEIGHT = 300, 56
_HERE: Final = "health"


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """One figure over an hour. ``lines`` hold the points of each line; ``bars`` are x, y, width, height."""

    title: str
    what: str
    last: str
    most: str
    lines: Sequence[str] = ()
    bars: Sequence[tuple[float, float, float, float]] = ()
    alarm: bool = False


class UpstreamStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An upstream, the pipelines that use it, and how a tenant's newest turns at it ended.

    ``breakers`` are those of its models that are not closed, as far as the tenant knows the models.
    """

    name: str
    provider: str
    model: str
    pipelines: Sequence[str]
    turns: int
    failed: int
    last: str | None
    breakers: Mapping[str, str]


class MemoryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Memory now. ``message`` says how long it took to answer, or why it did not."""

    answers: bool
    message: str
    failing: bool


async def _show(request: PageRequest) -> Response:
    server, runtime = request.server, request.runtime
    recent = [trace.report for trace in server.traces.newest(request.tenant)]
    now = time.time()
    memory = await _memory_status(runtime.memory) if runtime.memory else None
    minutes = server.traces.hour.minutes(now, request.tenant)
    status = server.status
    if status == "ready" and memory and not memory.answers:  # before /readyz knows
        status = "degraded"
    values: dict[str, Any] = {
        "upstreams": _upstreams(request, recent),
        "memory": memory,
        "session_advice": SESSION_ADVICE,
        "without_session": sum(NO_SESSION in report.degraded for report in recent),
        "plots": _plots(minutes),
        "turns": sum(minute.turns for minute in minutes),
        "server_status": status,
        "gauges": server.gauges() if request.is_only_tenant else None,
        "kept": len(recent),
        "keeps": server.traces.retention.turns,
        "size": (WIDTH, HEIGHT),
        "now": now,
    }
    if request.headers.get("x-part"):
        return await request.fragment("figures.html", **values)
    return await request.page("health.html", _HERE, **values)


async def _memory_status(memory: Memory) -> MemoryStatus:
    start = time.perf_counter()
    try:
        await memory.store.ping()
    except StoreError as error:
        return MemoryStatus(answers=False, message=str(error), failing=memory.degraded)
    message = f"answers in {took(time.perf_counter() - start)}"
    return MemoryStatus(answers=True, message=message, failing=memory.degraded)


def _upstreams(request: PageRequest, recent: Sequence[TurnReport]) -> Sequence[UpstreamStatus]:
    pipelines = request.runtime.pipelines.values()
    targets = {target.name: target for pipeline in pipelines for target in pipeline.targets}
    # A model's name may be one that another tenant's clients made up.
    own = {model for report in recent for model in (report.primary_model, report.model)}
    statuses = []
    for name, target in targets.items():
        states = [report.state for report in recent if report.upstream == name]
        status = UpstreamStatus(
            name=name,
            provider=target.provider.name,
            model=target.model or "as requested",
            pipelines=[pipeline.name for pipeline in pipelines if target in pipeline.targets],
            turns=len(states),
            failed=states.count("failed"),
            last=states[0] if states else None,
            breakers={
                model: state
                for model, state in target.health.states().items()
                if state != "closed" and (request.is_only_tenant or model in {target.model, *own})
            },
        )
        statuses.append(status)
    return statuses


def _plots(minutes: Sequence[MinuteStats]) -> Sequence[Plot]:
    def counts(*states: State) -> list[int]:
        return [sum(minute.states.get(state, 0) for state in states) for minute in minutes]

    return [
        _bar_plot("Turns", "a minute", [minute.turns for minute in minutes]),
        _line_plot("First token, p50", [minute.first_token(0.5) for minute in minutes]),
        _line_plot("First token, p95", [minute.first_token(0.95) for minute in minutes]),
        _bar_plot("Failed", "turns a minute", counts("failed"), alarm=True),
        _bar_plot("Cancelled", "turns a minute", counts("interrupted", "cancelled")),
        _bar_plot("Degraded", "turns a minute", counts("degraded"), alarm=True),
    ]


def _bar_plot(title: str, what: str, values: Sequence[int], *, alarm: bool = False) -> Plot:
    most = max(values)
    step = WIDTH / len(values)
    bars = [
        (round(i * step + 0.5, 2), round(HEIGHT - height, 2), round(step - 1, 2), round(height, 2))
        for i, value in enumerate(values)
        if (height := value / (most or 1) * HEIGHT)
    ]
    return Plot(title=title, what=what, last=str(values[-1]), most=str(most), bars=bars, alarm=alarm)


def _line_plot(title: str, values: Sequence[float | None]) -> Plot:
    """A line for each run of values; a value alone is a short one."""
    numbers = [value for value in values if value is not None]
    most = max(numbers, default=0.0)
    step = WIDTH / len(values)
    runs: list[list[str]] = [[]]
    for i, value in enumerate(values):
        if value is None:
            runs.append([])
            continue
        y = round(HEIGHT - 1 - value / (most or 1) * (HEIGHT - 2), 2)
        runs[-1] += [f"{i * step:.1f},{y}", f"{(i + 1) * step:.1f},{y}"]
    return Plot(
        title=title,
        what="since the request arrived",
        last=took(numbers[-1]) if numbers else "-",
        most=took(most) if numbers else "-",
        lines=[" ".join(run) for run in runs if run],
    )


ROUTES: Final = (("GET", "/health", _show),)
