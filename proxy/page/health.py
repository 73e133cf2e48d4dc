"""The health page: memory, upstreams, and a tenant's last hour as plots."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from starlette.responses import Response

from proxy.memory.errors import StoreError
from proxy.memory.memory import Memory
from proxy.observe.hour import Histogram, MinuteStats
from proxy.observe.observation import NO_SESSION, SESSION_ADVICE, State
from proxy.page.renderer import took
from proxy.page.request import PageRequest
from proxy.trace import Trace

WIDTH, HEIGHT = 300, 56
_HERE: Final = "health"
_NONE: Final = "\N{EN DASH}"
_MEANINGS: Final = {
    "memory": "The store does not answer, or not in time: calls are answered without earlier words, and new"
    " turns wait to be written. Look at 'memory.sessions' and at the store.",
    "limits": "The Redis that counts limits for all servers does not answer: each process counts by itself."
    " Look at 'limits.url' and at that Redis.",
    "summaries": "No model makes usable summaries: older turns are not summarised. The log has the reason.",
    "facts": "No model finds usable facts: nothing new is stored about users. The log has the reason.",
}


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """A plot of one metric over an hour.

    ``lines`` has the points of each run of each line, for SVG; a bar is x, y, width and height.
    """

    title: str
    what: str
    last: str
    peak: str
    lines: Sequence[Sequence[str]] = ()
    names: Sequence[str] = ()
    """The names of the lines, if there are several."""
    bars: Sequence[tuple[float, float, float, float]] = ()
    alarm: bool = False


class UpstreamStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An upstream, the pipelines that use it, and the outcomes of a tenant's newest turns at it.

    ``first_token`` is the median and the 95th percentile over the last hour, in seconds from the request
    upstream. ``breakers`` are the states of its circuit breakers that are not closed, by model; models that
    the tenant does not know are left out.
    """

    name: str
    provider: str
    model: str
    pipelines: Sequence[str]
    turns: int
    failed: int
    last: str | None
    first_token: tuple[float | None, float | None]
    breakers: Mapping[str, str]
    error: str | None
    """The error of the newest turn that failed at the upstream."""
    error_at: float = 0.0


class MemoryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of memory. ``message`` is the time that the store took to answer, or its error."""

    answers: bool
    message: str
    failing: bool


async def _show(request: PageRequest) -> Response:
    server, runtime = request.server, request.runtime
    traces = list(server.traces.newest(request.tenant))
    recent = [trace.report for trace in traces]
    now = time.time()
    memory = await _memory_status(runtime.memory) if runtime.memory else None
    minutes = server.traces.hour.minutes(now, request.tenant)
    status, degraded = server.status, dict.fromkeys(server.degraded)
    if status == "ready" and memory and not memory.answers:  # before /readyz reports it
        status, degraded = "degraded", dict.fromkeys(["memory", *degraded])
    added = Histogram(minute.added for minute in minutes)
    first = Histogram(minute.first_token for minute in minutes)
    prompt = sum(minute.input for minute in minutes)
    cached = sum(minute.cached for minute in minutes)
    values: dict[str, Any] = {
        "upstreams": _upstreams(request, traces, minutes),
        "memory": memory,
        "session_advice": SESSION_ADVICE,
        "without_session": sum(NO_SESSION in report.degraded for report in recent),
        "plots": _plots(minutes),
        # Over the last hour: durations in seconds, and tokens as upstreams report them.
        "summary": {
            "turns": sum(minute.turns for minute in minutes),
            "added": (added.quantile(0.5), added.quantile(0.99)),
            "first_token": (first.quantile(0.5), first.quantile(0.95)),
            "tokens": (prompt, sum(minute.output for minute in minutes)),
            "cached": _percent(cached / prompt) if prompt else None,
        },
        "begin": minutes[0].start,
        "server_status": status,
        "degraded": {name: _meaning(name) for name in degraded},
        "gauges": server.gauges() if request.is_only_tenant else None,
        "kept": len(recent),
        "keeps": server.traces.retention.turns,
        "size": (WIDTH, HEIGHT),
        "now": now,
    }
    if request.headers.get("x-part"):
        return await request.fragment("figures.html", **values)
    return await request.page("health.html", _HERE, **values)


def _meaning(name: str) -> str:
    """The explanation of a degraded component, with advice."""
    if name.startswith("upstream "):
        return (
            "It fails or does not answer: calls go to a pipeline's other upstreams, where it has any. Its"
            " last error is below, if a turn had it; look at its 'base_url', its 'api_key' and the log."
        )
    return _MEANINGS.get(name, "This work in the background fails. The log has the reason.")


async def _memory_status(memory: Memory) -> MemoryStatus:
    start = time.perf_counter()
    try:
        await memory.store.ping()
    except StoreError as error:
        return MemoryStatus(answers=False, message=str(error), failing=memory.degraded)
    message = f"answers in {took(time.perf_counter() - start)}"
    return MemoryStatus(answers=True, message=message, failing=memory.degraded)


def _upstreams(
    request: PageRequest, traces: Sequence[Trace], minutes: Sequence[MinuteStats]
) -> Sequence[UpstreamStatus]:
    recent = [trace.report for trace in traces]
    pipelines = request.runtime.pipelines.values()
    targets = {target.name: target for pipeline in pipelines for target in pipeline.targets}
    # The name of a model may come from another tenant's clients.
    models = {model for report in recent for model in (report.primary_model, report.model)}
    statuses = []
    for name, target in targets.items():
        times = Histogram(minute.upstreams[name] for minute in minutes if name in minute.upstreams)
        states = [report.state for report in recent if report.upstream == name]
        failures = (each for each in traces if each.report.upstream == name and each.report.state == "failed")
        failed = next(failures, None)
        status = UpstreamStatus(
            name=name,
            provider=target.provider.name,
            model=target.model or "as requested",
            pipelines=[pipeline.name for pipeline in pipelines if target in pipeline.targets],
            turns=len(states),
            failed=states.count("failed"),
            last=states[0] if states else None,
            first_token=(times.quantile(0.5), times.quantile(0.95)),
            breakers={
                model: state
                for model, state in target.health.states().items()
                if state != "closed" and (request.is_only_tenant or model in {target.model, *models})
            },
            error=failed.failure_at_upstream if failed else None,
            error_at=failed.report.at if failed else 0.0,
        )
        statuses.append(status)
    return statuses


def _plots(minutes: Sequence[MinuteStats]) -> Sequence[Plot]:
    def counts(*states: State) -> list[int]:
        return [sum(minute.states.get(state, 0) for state in states) for minute in minutes]

    def quantiles(name: Literal["added", "first_token"], share: float) -> list[float | None]:
        return [getattr(minute, name).quantile(share) for minute in minutes]

    cached = [minute.cached / minute.input if minute.input else None for minute in minutes]
    return [
        _bar_plot("Turns", "a minute", [minute.turns for minute in minutes]),
        _line_plot(
            "First token, p50 and p95",
            "since the request arrived",
            [quantiles("first_token", share) for share in (0.5, 0.95)],
            names=("p50", "p95"),
        ),
        _line_plot(
            "Added by Turnkeeper, p50 and p99",
            "before the model was asked",
            [quantiles("added", share) for share in (0.5, 0.99)],
            names=("p50", "p99"),
        ),
        _bar_plot("Prompt tokens", "a minute", [minute.input for minute in minutes]),
        _bar_plot("Answer tokens", "a minute", [minute.output for minute in minutes]),
        _line_plot("Cached share of prompts", "as upstreams report it", [cached], text=_percent),
        _bar_plot("Failed", "turns a minute", counts("failed"), alarm=True),
        _bar_plot("Cancelled", "turns a minute", counts("interrupted", "cancelled")),
        _bar_plot("Degraded", "turns a minute", counts("degraded"), alarm=True),
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _bar_plot(title: str, what: str, values: Sequence[int], *, alarm: bool = False) -> Plot:
    peak = max(values)
    step = WIDTH / len(values)
    bars = [
        (round(i * step + 0.5, 2), round(HEIGHT - height, 2), round(step - 1, 2), round(height, 2))
        for i, value in enumerate(values)
        if (height := value / (peak or 1) * HEIGHT)
    ]
    return Plot(title=title, what=what, last=f"{values[-1]:,}", peak=f"{peak:,}", bars=bars, alarm=alarm)


def _line_plot(
    title: str,
    what: str,
    series: Sequence[Sequence[float | None]],
    *,
    text: Callable[[float], str] = took,
    names: Sequence[str] = (),
) -> Plot:
    """Plots lines on one scale; ``None`` interrupts a line, and a single value is drawn as a short run."""
    numbers = [[value for value in values if value is not None] for values in series]
    peak = max((max(each, default=0.0) for each in numbers), default=0.0)
    lines = []
    for values in series:
        step = WIDTH / len(values)
        runs: list[list[str]] = [[]]
        for i, value in enumerate(values):
            if value is None:
                runs.append([])
                continue
            y = round(HEIGHT - 1 - value / (peak or 1) * (HEIGHT - 2), 2)
            runs[-1] += [f"{i * step:.1f},{y}", f"{(i + 1) * step:.1f},{y}"]
        lines.append([" ".join(run) for run in runs if run])
    return Plot(
        title=title,
        what=what,
        last=" / ".join(text(each[-1]) if each else _NONE for each in numbers),
        peak=text(peak) if any(numbers) else _NONE,
        lines=lines,
        names=names,
    )


ROUTES: Final = (("GET", "/health", _show),)
