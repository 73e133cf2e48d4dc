"""Builds the runtime from settings: memory, background work, admission and pipelines, not yet connected."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from filters.inject_last_call import InjectLastCall
from filters.redact import Redact
from proxy.admission.gate import Webhook
from proxy.admission.quota import Quota, RateLimits
from proxy.background.extractor import Extractor
from proxy.background.models import HttpEmbedder, HttpReranker, ModelClient, PromptRedaction
from proxy.background.summariser import Summariser
from proxy.background.worker import SessionJob, Worker
from proxy.errors import ConfigError
from proxy.memory.archive.archive import Archive, ArchiveHolder, open_archive
from proxy.memory.archive.archivist import QUIET, Archivist
from proxy.memory.archive.embeddings import EmbeddingWorker
from proxy.memory.archive.recall import (
    MODEL_TIMEOUT,
    RecallReader,
    Reranking,
    Retriever,
    Searcher,
    VectorSearch,
)
from proxy.memory.call_notes import CallNotes
from proxy.memory.compaction import SessionLimits
from proxy.memory.episodes.episodes import open_episodes
from proxy.memory.facts.extraction import FactExtraction
from proxy.memory.facts.fact_values import FactValues
from proxy.memory.facts.mem0 import Mem0, open_mem0
from proxy.memory.facts.user_facts import MAX_FACTS, FactReader, FactSearch, FactStore, UserFacts
from proxy.memory.memory import Archiving, FactMemory, Memory
from proxy.memory.past_calls import PastCalls
from proxy.memory.privacy import DataHolder, PrivacyRegistry, SessionHolder
from proxy.memory.recorder import (
    WRITE_TOLERANCE,
    HealthCheck,
    Recorder,
    WriteListener,
    Writer,
)
from proxy.memory.redacted_view import WindowRedaction
from proxy.memory.redaction import NO_REDACTION, Redaction
from proxy.memory.stores.channel import StoreClock
from proxy.memory.stores.codec import Codec, codec_from_keys
from proxy.memory.stores.drivers import (
    ChannelAddress,
    channel_address,
    is_shared_store,
    open_counts,
    open_driver,
    open_turns,
)
from proxy.memory.stores.session_store import Meter, SessionStore
from proxy.memory.stores.store import BACKGROUND_DEADLINE, Store
from proxy.memory.summaries import Summaries
from proxy.memory.token_scale import TokenCounter
from proxy.observe.metrics import Metrics
from proxy.runtime import Runtime
from proxy.settings.build_pipelines import build_pipelines, build_targets, common_time_zone
from proxy.settings.memory import MemorySettings, RecallSettings, SummarySettings
from proxy.settings.settings import Settings, counting_address
from proxy.shared_traces import SharedTraces
from proxy.traces import Retention, TombstoneWatch, Traces
from proxy.upstream.practice import PracticeModel
from proxy.upstream.target import Target

if TYPE_CHECKING:
    from proxy.memory.stores.redis_counts import RedisCounts

# A server with a single model accepts any name.
_ANY_MODEL: Final = "default"
# In seconds: how long counting may delay a turn, where there are no settings of memory.
_COUNTING_DEADLINE: Final = 0.05
# A session is read from the store when it is archived, which must be long before it expires.
_BEFORE_EXPIRY: Final = 10


class Stores(NamedTuple):
    """The session stores: for calls, behind a circuit breaker, and for background work.

    ``driver`` is the driver of the store for calls; ``codec`` and ``redaction`` apply to all stored data.
    """

    calls: SessionStore
    background: SessionStore
    driver: Store
    codec: Codec
    redaction: Redaction


class Models(NamedTuple):
    """The upstreams by name, and the redaction of prompts that background work sends them."""

    targets: Mapping[str, Target]
    redaction: PromptRedaction

    def target(self, name: str) -> Target | None:
        """The upstream of this name; ``None`` for the practice model, which could only repeat the prompt."""
        target = self.targets[name]
        return None if isinstance(target.upstream, PracticeModel) else target


def build_runtime(
    settings: Settings,
    environ: Mapping[str, str],
    metrics: Metrics | None = None,
    traces: Traces | None = None,
    *,
    notify: WriteListener | None = None,
) -> Runtime:
    """Builds the runtime of a configuration; ``environ`` names proxies to upstreams.

    With ``notify``, background work is left to the background process, and ``notify`` is called for each
    session that was written.
    """
    metrics, traces = metrics or Metrics(), traces or Traces()
    targets = build_targets(settings, environ)
    deadline = settings.memory.deadline if settings.memory else _COUNTING_DEADLINE
    counting = counting_address(settings) if settings.limits.has_any else ""
    counts = open_counts(counting, deadline=deadline)
    is_beside_sessions = settings.memory and counting == settings.memory.sessions.get_secret_value()
    memory, worker = _build_memory(
        settings,
        targets,
        metrics,
        traces,
        notify if needs_background_process(settings) else None,
        counts if is_beside_sessions else None,
    )
    archiving = memory.archiving if memory else None
    quota, section = None, settings.limits
    if section.has_any:
        # Redis counts for all servers if there is one; without it, and during an outage, this process counts.
        limits = RateLimits(
            section.requests_per_minute, section.tokens_per_minute, section.concurrent_streams
        )
        quota = Quota(limits, counts, deadline=deadline if counts else None, refused=metrics.count_refusal)
    channel = servers_channel(settings)
    token_counter = TokenCounter() if settings.tokens == "exact" else None
    agora = settings.webhooks.agora
    secret = agora.secret.get_secret_value().encode()
    return Runtime(
        pipelines=build_pipelines(settings, targets, memory, token_counter),
        memory=memory,
        privacy=memory.privacy if memory else PrivacyRegistry((traces,)),
        exact=token_counter,
        upstreams=tuple(target.upstream for target in targets.values()),
        health={name: target.health for name, target in targets.items()},
        keys=settings.keys,
        max_body=settings.listen.max_body,
        worker=worker,
        runs_worker=settings.memory.work if settings.memory else False,
        agora_webhook=Webhook(secret, agora.tenant or tenant_names(settings)[0]) if secret else None,
        log_content=settings.log.content,
        quota=quota,
        tracing=settings.opentelemetry.exporter(),
        trace_retention=Retention(settings.traces.keep, settings.traces.content),
        shared_traces=_share_traces(settings, memory),
        zone=common_time_zone(settings.pipelines),
        tombstones=TombstoneWatch(archiving.archive, traces) if archiving else None,
        channel=channel,
        clock=StoreClock(channel.open()[0]) if channel else None,
    )


def needs_background_process(settings: Settings) -> bool:
    """Whether there is background work, and a store of sessions that another process can open."""
    memory = settings.memory
    if memory is None or not is_shared_store(memory.sessions.get_secret_value()):
        return False
    return bool(memory.archive_url or (memory.work and (memory.summaries or memory.facts)))


def injects_last_calls(settings: Settings) -> bool:
    """Whether a pipeline injects the last call."""
    steps = (step for pipeline in settings.pipelines.values() for step in pipeline.request)
    return any(isinstance(step, InjectLastCall) for step in steps)


def build_memory(settings: Settings) -> Memory | None:
    """Builds the memory of a configuration for commands; ``None`` where it has none."""
    traces = Traces()
    memory, _ = _build_memory(settings, build_targets(settings, {}), Metrics(), traces)
    traces.shared = _share_traces(settings, memory)
    return memory


def servers_channel(settings: Settings) -> ChannelAddress | None:
    """The address for messages between servers of the configuration's store, if it supports them."""
    if (memory := settings.memory) is None:
        return None
    return channel_address(
        memory.sessions.get_secret_value(), memory.encryption_keys, deadline=memory.deadline
    )


def tenant_names(settings: Settings) -> tuple[str, ...]:
    """The tenants, which are the names of the keys; ``default`` without keys."""
    return tuple(dict.fromkeys(key.tenant for key in settings.keys.entries)) or ("default",)


def _share_traces(settings: Settings, memory: Memory | None) -> SharedTraces | None:
    """The traces of all hosts, if the store supports them; without text where redaction is configured."""
    if settings.memory is None or memory is None or memory.turns is None:
        return None
    codec = codec_from_keys(settings.memory.encryption_keys)
    return SharedTraces(memory.turns, codec, with_text=settings.memory.redact is None)


# --- memory


def _build_memory(  # noqa: PLR0913, PLR0917 - settings, and what it shares with the rest
    settings: Settings,
    targets: Mapping[str, Target],
    metrics: Metrics,
    traces: Traces,
    notify: WriteListener | None = None,
    counts: "RedisCounts | None" = None,
) -> tuple[Memory | None, Worker | None]:
    section = settings.memory
    if section is None:
        return None, None
    stores = build_stores(section, metrics.count_operation, is_shared=metrics.is_shared, counts=counts)
    # Models of background work get no data that a pipeline redacts, or that is redacted before it is stored.
    steps = [step for one in settings.pipelines.values() for step in one.request if isinstance(step, Redact)]
    models = Models(targets, PromptRedaction((section.redact.marking, *steps) if section.redact else steps))
    view = WindowRedaction(stores.redaction)
    limits = SessionLimits(
        max_messages=section.window.max_messages,
        keep_messages=section.window.messages_after_cut,
        max_tokens=section.window.max_tokens if section.summaries else None,
        ttl=section.window.ttl,
        summaries=section.summaries.max if section.summaries else 0,
    )
    url = section.sessions.get_secret_value()
    archive = retriever = None
    if section.archive_url:
        sessions = stores.driver if section.archive_url == url else None
        archive = open_archive(
            section.archive_url, codec=stores.codec, sessions=sessions, redaction=stores.redaction
        )
        retriever = _build_retriever(archive, section.recall, models)
    try:
        mem0 = open_mem0(section.facts.mem0) if section.facts and section.facts.store == "mem0" else None
    except ValueError as error:
        raise ConfigError(f"memory.facts: {error}") from None
    stored_facts = FactValues(stores.calls)
    facts = _build_facts(section, stores, mem0 or archive or stored_facts)
    search: Searcher | None = retriever
    if facts and (mem0 or archive is None):
        search = FactSearch(facts.users, retriever)
    summaries = Summaries(stores.background, limits, _build_summariser(section.summaries, models), view)
    jobs = _build_jobs(settings, section, stores, summaries, facts, models)
    stores.calls.due = stores.background.due = [job.due_at for job in jobs]
    calls = _build_calls(section, stores.calls, stores.redaction)
    worker = archivist = None
    write_listeners: list[WriteListener] = [notify] if notify else []
    if notify is None:
        if archive:
            quiet = min(QUIET, section.window.ttl / _BEFORE_EXPIRY)
            keep = section.archive.seconds
            archivist = Archivist(stores.calls, archive, tenant_names(settings), keep=keep, quiet=quiet)
            write_listeners.append(archivist.enqueue)
        embedding = None
        if archive and retriever and retriever.embedder:
            embedding = EmbeddingWorker(stores.background, archive, retriever.embedder)
        worker = Worker(stores.background, jobs, tenant_names(settings), embedding)
        write_listeners.append(worker.session_written)
    archiving = None
    if archive and retriever and search:
        archiving = Archiving(archive, retriever, RecallReader(search, deadline=section.deadline), archivist)
    health = HealthCheck(stores.background, stores.calls.writing, patience=section.deadline + WRITE_TOLERANCE)
    writer = Writer(
        stores.calls,
        limits,
        [traces.session_written],
        write_listeners,
        reasoning=section.reasoning,
        health=health,
        redaction=view,
        erased_since=calls.erased_since,
    )
    file = Path(url.removeprefix("sqlite:")) if url.startswith("sqlite:") else None
    holders: list[DataHolder | None] = [
        ArchiveHolder(archive) if archive else None,
        mem0,
        # After those holders: from here on, writes of the user's data are refused.
        SessionHolder(stores.calls, file=file, begin=calls.erase, erased=traces.session_erased),
        calls,
        None if archive else stored_facts,
        traces,
    ]
    memory = Memory(
        store=stores.calls,
        writer=writer,
        recorder=Recorder(writer),
        episodes=open_episodes(url, deadline=section.deadline, codec=stores.codec, store=stores.calls),
        summaries=summaries,
        calls=calls,
        facts=facts,
        search=search,
        privacy=PrivacyRegistry(tuple(filter(None, holders))),
        archiving=archiving,
        health=health,
        redaction=view,
        turns=open_turns(url),
    )
    return memory, worker


def build_stores(
    settings: MemorySettings, meter: Meter, *, is_shared: bool = False, counts: "RedisCounts | None" = None
) -> Stores:
    """Builds the session stores; ``meter`` counts the operations of calls.

    ``is_shared`` is whether other processes of this server use them. ``counts`` are the limits' counts on the
    same Redis.

    With Redis and PostgreSQL, background work has a longer deadline and its own connections, and never opens
    the breaker. Other stores have one driver for both, since a package's driver may keep all data in this
    process.
    """
    url = settings.sessions.get_secret_value()
    scheme = url.partition(":")[0]
    codec = codec_from_keys(settings.encryption_keys)
    redaction = Redaction(settings.redact.marking) if settings.redact else NO_REDACTION
    driver = open_driver(url, deadline=settings.deadline, is_shared=is_shared, counts=counts)
    is_server = scheme.partition("+")[0] in {"redis", "rediss", "postgres", "postgresql"}
    patient = open_driver(url, deadline=BACKGROUND_DEADLINE) if is_server else None
    # With a pool a read takes one round of the event loop for its task, one for the command, and one to
    # write.
    rounds = 0 if scheme.startswith("redis") else 3
    calls = SessionStore(
        driver,
        codec,
        redaction=redaction,
        deadline=settings.deadline,
        background_driver=patient,
        meter=meter,
        rounds=None if scheme in {"sqlite", "memory"} else rounds,
    )
    background = SessionStore(patient or driver, codec, redaction=redaction)
    return Stores(calls, background, driver, codec, redaction)


def _build_facts(settings: MemorySettings, stores: Stores, place: FactStore) -> FactMemory | None:
    """Builds the memory of facts over the store ``place``; ``None`` where no facts are kept."""
    if not settings.keeps_facts:
        return None
    users = UserFacts(
        place,
        most=settings.facts.max if settings.facts else MAX_FACTS,
        conversation=settings.window.ttl,
        redaction=stores.redaction,
    )
    stored = place if isinstance(place, FactValues) else None
    is_bounded = stored is not None and stores.calls.rounds == 0
    reader = FactReader(users, deadline=settings.deadline, is_bounded=is_bounded)
    return FactMemory(users, reader, place if isinstance(place, Mem0) else None, stored)


# --- models for background work


def _build_summariser(settings: SummarySettings | None, models: Models) -> Summariser | None:
    target = models.target(settings.upstream) if settings else None
    if settings is None or target is None:
        return None
    return Summariser(
        ModelClient(target, timeout=settings.timeout),
        model=settings.model or target.model or "",
        fallback=settings.fallback,
        input_tokens=settings.input_tokens,
        redaction=models.redaction,
    )


def _build_jobs(  # noqa: PLR0913, PLR0917 - what all of them work on
    settings: Settings,
    section: MemorySettings,
    stores: Stores,
    summaries: Summaries,
    fact_memory: FactMemory | None,
    models: Models,
) -> list[SessionJob]:
    jobs: list[SessionJob] = [summaries] if section.summaries else []
    if injects_last_calls(settings):
        calls = _build_calls(section, stores.background, stores.redaction)
        writer = _build_summariser(section.summaries, models)
        jobs.append(CallNotes(stores.background, calls, writer, pause=section.silence))
    facts = section.facts
    if facts and fact_memory and (target := models.target(facts.upstream)):
        extractor = Extractor(
            ModelClient(target, timeout=facts.timeout),
            model=facts.model or target.model or "",
            fallback=facts.fallback,
            zone=common_time_zone(settings.pipelines),
            redaction=models.redaction,
            instructions=facts.instructions,
            fields=facts.fields,
        )
        jobs.append(
            FactExtraction(stores.background, fact_memory.users, extractor, pause=section.facts_pause)
        )
    return jobs


def _build_calls(settings: MemorySettings, store: SessionStore, redaction: Redaction) -> PastCalls:
    return PastCalls(store, keep=settings.calls_kept, redact=redaction.text)


def _build_retriever(archive: Archive, settings: RecallSettings, models: Models) -> Retriever:
    """Builds the search of the archive, with its models for embeddings and reranking."""
    vectors = reranking = None
    embeddings, rerank = settings.embeddings, settings.rerank
    if embeddings and (target := models.target(embeddings.upstream)):
        model = embeddings.model or target.model or _ANY_MODEL
        embedder = HttpEmbedder(target, model=model, timeout=embeddings.timeout, redaction=models.redaction)
        vectors = VectorSearch(embedder, embeddings.weight, embeddings.least)
    if rerank and (target := models.target(rerank.upstream)):
        model = rerank.model or target.model or _ANY_MODEL
        reranker = HttpReranker(target, model=model, timeout=MODEL_TIMEOUT, redaction=models.redaction)
        reranking = Reranking(reranker, rerank.top)
    return Retriever(archive, vectors=vectors, reranking=reranking)
