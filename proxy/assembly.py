"""From settings to the objects that serve them."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from filters.base import RequestFilter
from filters.inject_episodes import InjectEpisodes
from filters.recall import Recall
from proxy.app import App
from proxy.configuration.settings import Identity, Settings
from proxy.configuration.settings import Memory as MemorySettings
from proxy.configuration.settings import Pipeline as PipelineSettings
from proxy.configuration.settings import Summaries as SummarySettings
from proxy.configuration.settings import Upstream as UpstreamSettings
from proxy.era import Parts
from proxy.gate import Gate
from proxy.health import Health
from proxy.inquiry import Inquiry
from proxy.kinds import KINDS
from proxy.lately import Lately
from proxy.memory.archive.archivist import Archivist
from proxy.memory.archive.open import open_archive
from proxy.memory.archive.recollection import Recollection
from proxy.memory.codec import Codec
from proxy.memory.episodes.open import open_episodes
from proxy.memory.guard import Guard
from proxy.memory.knowledge import Knowledge
from proxy.memory.metered import Meter, Metered
from proxy.memory.open import open_counts, open_store
from proxy.memory.people import Archived, HeldSessions, People
from proxy.memory.plan import Window
from proxy.memory.sealing import codec_of
from proxy.memory.store import Store
from proxy.memory.summaries import Summaries
from proxy.metrics import Metrics
from proxy.pipeline import Archiving, Memory, Pipeline, Target
from proxy.place import Place, identifier
from proxy.practice import Practice
from proxy.proof import Proof
from proxy.quota import Limits, Quota
from proxy.record import Listener, Recorder
from proxy.session import PROVEN_PLACES, SESSION_PLACES, USER_PLACES, Places
from proxy.summariser import Summariser
from proxy.traces import Keeping, Traces
from proxy.tracing import traced_to
from proxy.upstream import HttpUpstream, Upstream
from proxy.version import VERSION
from proxy.webhook import Webhook
from proxy.work import Worker

_PRACTICE = "practice:"


def app(settings: Settings, environ: Mapping[str, str] = os.environ) -> App:
    """The application that a configuration describes; ``environ`` says which proxies lead to the models."""
    metrics, traces = Metrics(), Traces()
    return App(parts(settings, environ, metrics, traces), metrics, traces)


def parts(
    settings: Settings,
    environ: Mapping[str, str],
    metrics: Metrics | None = None,
    traces: Traces | None = None,
) -> Parts:
    """What an application is made of; ``metrics`` and ``traces`` are told of what memory does."""
    metrics, traces = metrics or Metrics(), traces or Traces()
    targets = _targets(settings, environ)
    remembered, worker = _memory(settings, targets, metrics.memory, [traces.recorded])
    return Parts(
        pipelines=_pipelines(settings, targets, remembered),
        memory=remembered,
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
        keeping=Keeping(settings.traces.keep, settings.traces.content),
    )


def _quota(settings: Settings, refused: Callable[[str], None]) -> Quota | None:
    """Counts where sessions are, when that is a Redis; else in this process."""
    own, memory = settings.limits, settings.memory
    limits = Limits(own.requests_per_minute, own.tokens_per_minute, own.concurrent_streams)
    if limits == Limits():
        return None
    if not memory:
        return Quota(limits, refused=refused)
    storage = open_counts(memory.sessions.get_secret_value(), deadline=memory.deadline)
    return Quota(limits, storage, deadline=memory.deadline, refused=refused)


def _agora(settings: Settings) -> Webhook | None:
    """Who may tell of Agora's agents; nobody without a secret."""
    told, names = settings.webhooks.agora, [key.tenant for key in settings.keys.entries]
    secret = told.secret.get_secret_value()
    tenant = told.tenant or (names[0] if names else "default")
    return Webhook(secret.encode(), tenant) if secret else None


def pipelines(settings: Settings, environ: Mapping[str, str] = os.environ) -> Mapping[str, Pipeline]:
    """The pipelines that a configuration describes, by name; nothing is connected."""
    return _pipelines(settings, _targets(settings, environ))


def _targets(settings: Settings, environ: Mapping[str, str]) -> Mapping[str, Target]:
    return {name: _target(name, upstream, environ) for name, upstream in settings.upstreams.items()}


def memory(settings: Settings) -> Memory | None:
    """What a configuration remembers with, for work beside any serving; nothing is connected."""
    remembered, _ = _memory(settings, _targets(settings, {}), _unmetered, [])
    return remembered


def _unmetered(_operation: str, _end: str, _seconds: float) -> None:
    """Nobody counts."""


def tenants(settings: Settings) -> tuple[str, ...]:
    """Whose memory there may be: the names of the keys; without keys there is one."""
    named = dict.fromkeys(key.tenant for key in settings.keys.entries)
    return tuple(named) or ("default",)


def _memory(
    settings: Settings, targets: Mapping[str, Target], meter: Meter, listeners: Sequence[Listener]
) -> tuple[Memory, Worker] | tuple[None, None]:
    """Memory, and who works on it in the background."""
    if settings.memory is None:
        return None, None
    own, deadline = settings.memory, settings.memory.deadline
    url, window = own.sessions.get_secret_value(), _window(own)
    codec = codec_of([key.get_secret_value() for key in own.encryption])
    opened = open_store(url, deadline=deadline, codec=codec)
    store = Metered(Guard(opened, patience=deadline / 4), meter)
    # Work in the background waits where it must, and shuts the store off for nobody.
    summaries = Summaries(opened, window, _summariser(own.summaries, targets))
    worker = Worker(opened, [summaries] if own.summaries else [], tenants(settings))
    archiving = _archiving(own, store, codec, tenants(settings))
    archivist = (archiving.archivist.told,) if archiving else ()
    holdings = (Archived(archiving.archive),) if archiving else ()
    memory = Memory(
        store,
        Recorder(store, window, (*listeners, *archivist, worker.nudge), reasoning=own.reasoning),
        open_episodes(url, deadline=deadline, codec=codec, store=store),
        summaries,
        People((*holdings, HeldSessions(store, ttl=window.ttl, file=_file(url)))),
        archiving,
        archiving.knowledge.lines if archiving else None,
    )
    return memory, worker


def _window(settings: MemorySettings) -> Window:
    window = settings.window
    return Window(
        max_messages=window.max_messages,
        keep_messages=window.keep_messages,
        max_tokens=window.max_tokens,
        ttl=window.ttl,
        summaries=settings.summaries.max if settings.summaries else 0,
    )


def _summariser(settings: SummarySettings | None, targets: Mapping[str, Target]) -> Summariser | None:
    """The model that writes summaries; none where it could only tell what it was shown."""
    target = targets[settings.upstream] if settings else None
    if settings is None or target is None or isinstance(target.upstream, Practice):
        return None
    return Summariser(
        Inquiry(target, timeout=settings.timeout),
        model=settings.model or target.model or "",
        fallback=settings.fallback,
        input_tokens=settings.input_tokens,
    )


def _file(url: str) -> Path | None:
    return Path(url.removeprefix("sqlite:")) if url.startswith("sqlite:") else None


def _archiving(
    settings: MemorySettings, store: Store, codec: Codec, tenants: tuple[str, ...]
) -> Archiving | None:
    url = settings.archive_url
    if not url:
        return None
    archive = open_archive(url, codec=codec)
    archivist = Archivist(store, archive, tenants, keep=settings.archive.seconds)
    recollection = Recollection(archive, deadline=settings.deadline)
    return Archiving(archive, archivist, recollection, Knowledge(archive, talk=settings.window.ttl))


def _pipelines(
    settings: Settings, targets: Mapping[str, Target], memory: Memory | None = None
) -> Mapping[str, Pipeline]:
    return {name: _pipeline(name, one, targets, memory) for name, one in settings.pipelines.items()}


def _pipeline(
    name: str, settings: PipelineSettings, targets: Mapping[str, Target], memory: Memory | None
) -> Pipeline:
    asked = tuple(targets[upstream] for upstream in settings.upstreams)
    return Pipeline(
        name=name,
        targets=asked,
        filters=settings.request,
        skips_failing=settings.failing == "skip",
        answer=settings.answer,
        places=_places(settings.identity),
        memory=memory,
        lately=_lately(settings.request),
        tools=settings.tools,
        tool_rounds=settings.tool_rounds,
        recalls=max((step.limit for step in settings.request if isinstance(step, Recall)), default=0),
        model=settings.model or None,
        first_token=settings.first_token or sum(target.patience for target in asked),
        total=max(target.total for target in asked),
        hedge=settings.hedge,
        keep_alive=settings.keep_alive,
    )


def _lately(steps: Iterable[RequestFilter]) -> Lately | None:
    """What the first step that tells of episodes needs to know."""
    step = next((step for step in steps if isinstance(step, InjectEpisodes)), None)
    if step is None:
        return None
    return Lately(identifier(step.agent), Place.parse(step.place), step.hours, step.limit)


def _places(settings: Identity) -> Places:
    secret = settings.user_hmac.get_secret_value()
    return Places(
        session=_parsed(settings.session, SESSION_PLACES),
        user=_parsed(settings.user, PROVEN_PLACES if secret else USER_PLACES),
        default_session=settings.default_session or None,
        proof=Proof(secret) if secret else None,
    )


def _parsed(places: tuple[str, ...] | None, otherwise: tuple[Place, ...]) -> tuple[Place, ...]:
    return otherwise if places is None else tuple(map(Place.parse, places))


def _target(name: str, settings: UpstreamSettings, environ: Mapping[str, str]) -> Target:
    return Target(
        name=name,
        health=Health(),
        upstream=_upstream(settings, environ),
        kind=KINDS[settings.accepts],
        headers=tuple(_headers(settings)),
        model=settings.model or None,
        allow=frozenset(settings.allow),
        forward_headers=settings.forward_headers,
        forward_key=settings.forward_key,
        first_token=settings.first_token,
        first_content=settings.first_content,
        total=settings.total,
        retries=settings.retries,
    )


def _upstream(settings: UpstreamSettings, environ: Mapping[str, str]) -> Upstream:
    if settings.base_url == _PRACTICE:
        return Practice()
    return HttpUpstream(
        settings.base_url,
        connect=settings.connect,
        max_connections=settings.max_connections,
        environ=environ,
    )


def _headers(settings: UpstreamSettings) -> Iterator[tuple[bytes, bytes]]:
    yield b"content-type", b"application/json"
    yield b"accept-encoding", b"identity"  # a packed stream arrives late, if at all
    yield b"user-agent", f"turnkeeper/{VERSION}".encode()
    key = settings.api_key.get_secret_value()
    if key and not settings.forward_key:
        name, value = ("api-key", key) if settings.accepts == "azure" else ("authorization", f"Bearer {key}")
        yield name.encode(), value.encode()
    for header, secret in settings.headers.items():
        yield header.lower().encode(), secret.get_secret_value().encode()
