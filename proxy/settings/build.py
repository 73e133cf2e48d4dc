"""Where sessions are kept, as an address says, and what they pass on their way there."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from filters.redact import Redact
from proxy.admission.gate import Gate
from proxy.admission.keys import Webhook
from proxy.admission.quota import Quota, RateLimits
from proxy.background.extractor import Extractor
from proxy.background.models import ChatModel, PromptRedaction
from proxy.background.retrieval import HttpEmbedder, HttpReranker
from proxy.background.summariser import Summariser
from proxy.background.worker import IdleTimer, Service, SessionJob, Worker
from proxy.errors import ConfigError
from proxy.memory.archive.archive import Archive, ArchiveHolder, open_archive
from proxy.memory.archive.archivist import Archivist
from proxy.memory.archive.embeddings import EmbeddingWorker
from proxy.memory.archive.recall import MODEL_TIMEOUT, RecallReader, Reranking, Retriever, VectorSearch
from proxy.memory.episodes.episodes import Episodes, open_episodes, with_redaction
from proxy.memory.facts.extraction import FactExtraction
from proxy.memory.facts.mem0 import Mem0, open_mem0
from proxy.memory.facts.user_facts import MAX_FACTS, FactReader, UserFacts
from proxy.memory.memory import Archiving, Memory
from proxy.memory.privacy import DataHolder, PrivacyRegistry, SessionHolder
from proxy.memory.recorder import WRITE_TOLERANCE, HealthCheck, Recorder, SessionListener, Writer
from proxy.memory.redaction.codec import RedactingCodec
from proxy.memory.redaction.redaction import NO_REDACTION, Redaction
from proxy.memory.redaction.view import WindowRedaction
from proxy.memory.stores.codec import Codec, codec_from_keys
from proxy.memory.stores.drivers import open_counts, open_store
from proxy.memory.stores.session_store import Guard, Meter, Metered, Recent
from proxy.memory.stores.sqlite_file import ForeignCommits
from proxy.memory.stores.store import BACKGROUND_DEADLINE, Store
from proxy.memory.summaries.compaction import Window
from proxy.memory.summaries.summaries import Summaries
from proxy.observe.metrics import Metrics
from proxy.observe.tracing import span_exporter
from proxy.runtime import Runtime
from proxy.settings.build_pipelines import build_targets, common_zone, pipelines_of
from proxy.settings.memory import Embeddings, RecallAids, Rerank
from proxy.settings.memory import Memory as MemorySettings
from proxy.settings.settings import Limits, Settings
from proxy.traces import Retention, TombstoneWatch, TraceHolder, Traces
from proxy.upstream.practice import PracticeModel
from proxy.upstream.target import Target
from proxy.upstream.tokens import TokenCounter

# Servers of one model take any name.
_UNNAMED: Final = "default"


class Stores(NamedTuple):
    """Where sessions are kept: for calls, behind their guard, and for work in the background.

    ``codec`` and ``redaction`` are what anything passes on its way to where it is kept, and ``elsewhere`` is
    who else writes to the sessions' file.
    """

    calls: Recent
    guard: Guard
    background: Store
    codec: Codec
    redaction: Redaction
    elsewhere: ForeignCommits | None


def _build_stores(settings: MemorySettings, meter: Meter) -> Stores:
    """The stores; nothing is connected. ``meter`` is told of what calls ask of them."""
    url, path = settings.sessions.get_secret_value(), _file_of(settings.sessions.get_secret_value())
    codec = codec_from_keys([key.get_secret_value() for key in settings.encryption])
    redaction = Redaction(settings.redact.marking) if settings.redact else NO_REDACTION
    edge, elsewhere = (
        RedactingCodec(codec, redaction) if redaction else codec,
        ForeignCommits(path) if path else None,
    )
    guard, background = open_guarded(url, settings.deadline, edge, elsewhere)
    calls = Recent(Metered(guard, meter), rounds=_rounds(url))
    return Stores(calls, guard, background, codec, redaction, elsewhere)


def open_guarded(
    url: str, deadline: float, codec: Codec, elsewhere: ForeignCommits | None
) -> tuple[Guard, Store]:
    """The store for calls, and for work in the background, which shuts it off for nobody.

    That waits where it must, by a way of its own to the same server. Anything else has one way: a driver from
    outside may keep all that it holds within this process.
    """
    opened = open_store(url, deadline=deadline, codec=codec, elsewhere=elsewhere)
    background = open_store(url, deadline=BACKGROUND_DEADLINE, codec=codec) if _is_server(url) else None
    return Guard(opened, deadline=deadline, background=background), background or opened


def _file_of(url: str) -> Path | None:
    """Where sessions are, if they are in a file."""
    return Path(url.removeprefix("sqlite:")) if url.startswith("sqlite:") else None


def _rounds(url: str) -> int:
    """After how many rounds of the loop a question to the store is on its way."""
    scheme = url.partition(":")[0]
    if scheme in {"sqlite", "memory"}:
        return 0
    # A task for whoever asks; with a pool, another for the command, and the moment in which it is written.
    return 1 if scheme.startswith("redis") and not scheme.endswith("+cluster") else 3


def _is_server(url: str) -> bool:
    scheme, _, _ = url.partition(":")
    return scheme.partition("+")[0] in {"redis", "rediss", "postgres", "postgresql"}


class Models(NamedTuple):
    """The upstreams by their names, and what is kept from those that are asked in the background."""

    targets: Mapping[str, Target]
    discretion: PromptRedaction

    def target(self, name: str) -> Target | None:
        """The upstream of this name; none where it could only tell what it was shown."""
        target = self.targets[name]
        return None if isinstance(target.upstream, PracticeModel) else target


def _build_models(settings: Settings, targets: Mapping[str, Target]) -> Models:
    """The models; what any chain keeps from one, or is never stored, is kept from them."""
    steps = [step for one in settings.pipelines.values() for step in one.request if isinstance(step, Redact)]
    stored = settings.memory.redact if settings.memory else None
    return Models(targets, PromptRedaction((stored.marking, *steps) if stored else steps))


def _build_summariser(settings: Settings, models: Models) -> Summariser | None:
    """Who writes summaries, if a model is to."""
    own = settings.memory.summaries if settings.memory else None
    target = models.target(own.upstream) if own else None
    if own is None or target is None:
        return None
    return Summariser(
        ChatModel(target, timeout=own.timeout),
        model=own.model or target.model or "",
        fallback=own.fallback,
        input_tokens=own.input_tokens,
        discretion=models.discretion,
    )


def _build_extractor(settings: Settings, models: Models) -> Extractor | None:
    """Who finds facts, if a model is to."""
    own = settings.memory.facts if settings.memory else None
    target = models.target(own.upstream) if own else None
    if own is None or target is None:
        return None
    return Extractor(
        ChatModel(target, timeout=own.timeout),
        model=own.model or target.model or "",
        fallback=own.fallback,
        zone=common_zone(settings.pipelines),
        discretion=models.discretion,
    )


def _build_finder(archive: Archive, settings: RecallAids, models: Models) -> Retriever:
    """A search of the archive with all the help that is configured."""
    likeness = _likeness(settings.embeddings, models)
    return Retriever(archive, likeness=likeness, order=_order(settings.rerank, models))


def _likeness(settings: Embeddings | None, models: Models) -> VectorSearch | None:
    target = models.target(settings.upstream) if settings else None
    if settings is None or target is None:
        return None
    model = settings.model or target.model or _UNNAMED
    embedder = HttpEmbedder(target, model=model, timeout=settings.timeout, discretion=models.discretion)
    return VectorSearch(embedder, settings.weight, settings.least)


def _order(settings: Rerank | None, models: Models) -> Reranking | None:
    target = models.target(settings.upstream) if settings else None
    if settings is None or target is None:
        return None
    model = settings.model or target.model or _UNNAMED
    reranker = HttpReranker(target, model=model, timeout=MODEL_TIMEOUT, discretion=models.discretion)
    return Reranking(reranker, settings.top)


def _build_archiving(
    settings: MemorySettings, stores: Stores, models: Models, tenants: tuple[str, ...]
) -> Archiving | None:
    """The archive, and who works on it; none where no turn is kept for good."""
    archive = _archive(settings, stores)
    if archive is None:
        return None
    finder, mem0 = _build_finder(archive, settings.recall, models), _mem0(settings)
    knowledge = _knowledge(settings, stores, mem0 or archive)
    return Archiving(
        archive=archive,
        retriever=finder,
        archivist=Archivist(stores.calls, archive, tenants, keep=settings.archive.seconds),
        recall=RecallReader(finder, deadline=settings.deadline),
        facts=knowledge,
        fact_reader=FactReader(knowledge, deadline=settings.deadline),
        mem0=mem0,
    )


def _archive(settings: MemorySettings, stores: Stores) -> Archive | None:
    url = settings.archive_url
    beside = stores.elsewhere if url == settings.sessions.get_secret_value() else None
    if not url:
        return None
    return open_archive(url, codec=stores.codec, elsewhere=beside, redaction=stores.redaction)


def _knowledge(settings: MemorySettings, stores: Stores, shelf: Archive | Mem0) -> UserFacts:
    most = settings.facts.max if settings.facts else MAX_FACTS
    return UserFacts(shelf, most=most, conversation=settings.window.ttl, redaction=stores.redaction)


def _mem0(settings: MemorySettings) -> Mem0 | None:
    """Raises ConfigError where the library does not take its options."""
    if settings.facts is None or settings.facts.store != "mem0":
        return None
    try:
        return open_mem0(settings.facts.mem0)
    except ValueError as error:
        raise ConfigError(f"memory.facts: {error}") from None


def build_memory(settings: Settings) -> Memory | None:
    """What a configuration remembers with, for work beside any serving; nothing is connected."""
    memory, _ = build_memory_and_worker(settings, build_targets(settings, {}), _unmetered, Traces())
    return memory


def _unmetered(_operation: str, _end: str, _seconds: float) -> None:
    """Nobody counts."""


def tenant_names(settings: Settings) -> tuple[str, ...]:
    """Whose memory there may be: the names of the keys; without keys there is one."""
    named = dict.fromkeys(key.tenant for key in settings.keys.entries)
    return tuple(named) or ("default",)


def build_memory_and_worker(
    settings: Settings, targets: Mapping[str, Target], meter: Meter, traces: Traces
) -> tuple[Memory, Worker] | tuple[None, None]:
    """Memory, and who works on it in the background."""
    own = settings.memory
    if own is None:
        return None, None
    stores, models, window = _build_stores(own, meter), _build_models(settings, targets), _window(own)
    veil, pulse = (
        WindowRedaction(stores.redaction),
        HealthCheck(stores.background, patience=own.deadline + WRITE_TOLERANCE),
    )
    archiving = _build_archiving(own, stores, models, tenant_names(settings))
    summaries = Summaries(stores.background, window, _build_summariser(settings, models), veil)
    worker = _worker(settings, stores.background, summaries, archiving, models)
    listeners = (traces.session_written, *_listeners(own, archiving, worker))
    writer = Writer(stores.calls, window, listeners, reasoning=own.reasoning, pulse=pulse, veil=veil)
    memory = Memory(
        store=stores.calls,
        writer=writer,
        recorder=Recorder(writer),
        episodes=_episodes(own, stores),
        summaries=summaries,
        privacy=PrivacyRegistry(_holdings(own, stores, archiving, traces)),
        archiving=archiving,
        health=pulse,
        breaker=stores.guard,
        veil=veil,
    )
    return memory, worker


def _window(settings: MemorySettings) -> Window:
    window = settings.window
    return Window(
        max_messages=window.max_messages,
        keep_messages=window.messages_after_cut,
        max_tokens=window.max_tokens,
        ttl=window.ttl,
        summaries=settings.summaries.max if settings.summaries else 0,
    )


def _worker(
    settings: Settings, store: Store, summaries: Summaries, archiving: Archiving | None, models: Models
) -> Worker:
    works: list[SessionJob] = [summaries] if settings.memory and settings.memory.summaries else []
    works += _learning(settings, store, archiving, models)
    return Worker(store, works, tenant_names(settings), tuple(_chores(store, archiving)))


def _learning(
    settings: Settings, store: Store, archiving: Archiving | None, models: Models
) -> Iterator[FactExtraction]:
    """Who finds facts; nobody without an archive."""
    facts, extractor = settings.memory and settings.memory.facts, _build_extractor(settings, models)
    if facts and extractor and archiving:
        yield FactExtraction(store, archiving.facts, extractor, pause=facts.pause)


def _chores(store: Store, archiving: Archiving | None) -> Iterator[Service]:
    embedder = archiving.retriever.embedder if archiving else None
    if archiving and embedder:
        yield EmbeddingWorker(store, archiving.archive, embedder)


def _listeners(
    settings: MemorySettings, archiving: Archiving | None, worker: Worker
) -> Iterator[SessionListener]:
    if archiving:
        yield archiving.archivist.enqueue
    yield worker.session_written
    if settings.facts:
        yield IdleTimer(worker.check, after=settings.facts.pause).session_written


def _episodes(settings: MemorySettings, stores: Stores) -> Episodes:
    url, deadline = settings.sessions.get_secret_value(), settings.deadline
    opened = open_episodes(url, deadline=deadline, codec=stores.codec, store=stores.calls)
    return with_redaction(opened, stores.redaction)


def _holdings(
    settings: MemorySettings, stores: Stores, archiving: Archiving | None, traces: Traces
) -> tuple[DataHolder, ...]:
    """Every place that holds a person's words."""
    sessions = SessionHolder(stores.calls, file=_file_of(settings.sessions.get_secret_value()))
    kept: list[DataHolder] = [ArchiveHolder(archiving.archive)] if archiving else []
    if archiving and archiving.mem0:
        kept.append(archiving.mem0)
    return (*kept, sessions, TraceHolder(traces))


def build_runtime(
    settings: Settings,
    environ: Mapping[str, str],
    metrics: Metrics | None = None,
    traces: Traces | None = None,
) -> Runtime:
    """What an application is made of; ``metrics`` and ``traces`` are told of what memory does."""
    metrics, traces = metrics or Metrics(), traces or Traces()
    targets = build_targets(settings, environ)
    memory, worker = build_memory_and_worker(settings, targets, metrics.note_operation, traces)
    exact = TokenCounter() if settings.tokens == "exact" else None
    return Runtime(
        pipelines=pipelines_of(settings, targets, memory, exact),
        memory=memory,
        privacy=memory.privacy if memory else PrivacyRegistry((TraceHolder(traces),)),
        exact=exact,
        upstreams=tuple(target.upstream for target in targets.values()),
        health={name: target.health for name, target in targets.items()},
        gate=Gate(settings.keys),
        max_body=settings.listen.max_body,
        worker=worker,
        runs_worker=settings.memory.work if settings.memory else False,
        agora_webhook=_agora(settings),
        log_content=settings.log.content,
        quota=_quota(settings, metrics.count_refusal),
        tracing=span_exporter(settings.opentelemetry.endpoint),
        trace_retention=Retention(settings.traces.keep, settings.traces.content),
        zone=common_zone(settings.pipelines),
        tombstones=TombstoneWatch(memory.archiving.archive, traces) if memory and memory.archiving else None,
    )


def _quota(settings: Settings, refused: Callable[[str], None]) -> Quota | None:
    """Counts where sessions are, when that is a Redis; else in this process, and while Redis is away."""
    own, memory = settings.limits, settings.memory
    if own == Limits():
        return None
    limits = RateLimits(own.requests_per_minute, own.tokens_per_minute, own.concurrent_streams)
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
