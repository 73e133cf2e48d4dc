"""The application that a configuration describes."""

import os
from collections.abc import Callable, Mapping

from proxy.admission.gate import Gate
from proxy.admission.quota import Quota
from proxy.admission.webhook import Webhook
from proxy.admission.windows import Allowance
from proxy.app import App
from proxy.assembly.memory import memory_of
from proxy.assembly.pipelines import pipelines_of
from proxy.assembly.targets import targets_of
from proxy.assembly.zone import common_zone
from proxy.configuration.settings import Limits, Settings
from proxy.exact import Exact
from proxy.memory.open import open_counts
from proxy.memory.people import People
from proxy.observe.metrics import Metrics
from proxy.observe.tracing import traced_to
from proxy.parts import Parts
from proxy.traces import Retention, TombstoneWatch, TraceHolder, Traces


def app(
    settings: Settings, environ: Mapping[str, str] = os.environ, *, metrics: Metrics | None = None
) -> App:
    """The application that a configuration describes; ``environ`` says which proxies lead to the models."""
    metrics, traces = metrics or Metrics(), Traces()
    return App(parts(settings, environ, metrics, traces), metrics, traces)


def parts(
    settings: Settings,
    environ: Mapping[str, str],
    metrics: Metrics | None = None,
    traces: Traces | None = None,
) -> Parts:
    """What an application is made of; ``metrics`` and ``traces`` are told of what memory does."""
    metrics, traces = metrics or Metrics(), traces or Traces()
    targets = targets_of(settings, environ)
    memory, worker = memory_of(settings, targets, metrics.memory, traces)
    exact = Exact() if settings.tokens == "exact" else None
    return Parts(
        pipelines=pipelines_of(settings, targets, memory, exact),
        memory=memory,
        people=memory.people if memory else People((TraceHolder(traces),)),
        exact=exact,
        upstreams=tuple(target.upstream for target in targets.values()),
        health={name: target.health for name, target in targets.items()},
        gate=Gate(settings.keys),
        max_body=settings.listen.max_body,
        worker=worker,
        works=settings.memory.work if settings.memory else False,
        agora=_agora(settings),
        log_content=settings.log.content,
        quota=_quota(settings, metrics.refused),
        tracing=traced_to(settings.opentelemetry.endpoint),
        keeping=Retention(settings.traces.keep, settings.traces.content),
        zone=common_zone(settings.pipelines),
        graves=TombstoneWatch(memory.archiving.archive, traces) if memory and memory.archiving else None,
    )


def _quota(settings: Settings, refused: Callable[[str], None]) -> Quota | None:
    """Counts where sessions are, when that is a Redis; else in this process, and while Redis is away."""
    own, memory = settings.limits, settings.memory
    if own == Limits():
        return None
    limits = Allowance(own.requests_per_minute, own.tokens_per_minute, own.concurrent_streams)
    counts = open_counts(memory.sessions.get_secret_value(), deadline=memory.deadline) if memory else None
    # What this process counts itself is there at once, whatever else it does.
    deadline = memory.deadline if memory and counts else None
    return Quota(limits, counts, deadline=deadline, refused=refused)


def _agora(settings: Settings) -> Webhook | None:
    """Who may tell of Agora's agents; nobody without a secret."""
    told, names = settings.webhooks.agora, [key.tenant for key in settings.keys.entries]
    secret = told.secret.get_secret_value()
    tenant = told.tenant or (names[0] if names else "default")
    return Webhook(secret.encode(), tenant) if secret else None
