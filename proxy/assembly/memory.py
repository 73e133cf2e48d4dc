"""What is remembered with, as a configuration says, and who works on it."""

from collections.abc import Iterator, Mapping

from proxy.assembly.archiving import archiving_of
from proxy.assembly.models import Models, extractor_of, models_of, summariser_of
from proxy.assembly.stores import Stores, file_of, stores_of
from proxy.assembly.targets import targets_of
from proxy.background.worker import IdleTimer, Service, SessionJob, Worker
from proxy.configuration.settings import Memory as MemorySettings
from proxy.configuration.settings import Settings
from proxy.memory.archive.archived import Archived
from proxy.memory.archive.embedding import Embedding
from proxy.memory.episodes.open import open_episodes
from proxy.memory.episodes.redacted import redacted
from proxy.memory.episodes.source import Episodes
from proxy.memory.facts.learning import Learning
from proxy.memory.held_sessions import HeldSessions
from proxy.memory.metered import Meter
from proxy.memory.people import Holding, People
from proxy.memory.pulse import LATE, Pulse
from proxy.memory.redaction.view import WindowRedaction
from proxy.memory.store import Store
from proxy.memory.summaries.compaction import Window
from proxy.memory.summaries.summaries import Summaries
from proxy.record import Recorder
from proxy.remembering import Archiving, Memory
from proxy.target import Target
from proxy.traces import TraceHolder, Traces
from proxy.writer import Listener, Writer


def remembered(settings: Settings) -> Memory | None:
    """What a configuration remembers with, for work beside any serving; nothing is connected."""
    memory, _ = memory_of(settings, targets_of(settings, {}), _unmetered, Traces())
    return memory


def _unmetered(_operation: str, _end: str, _seconds: float) -> None:
    """Nobody counts."""


def tenants(settings: Settings) -> tuple[str, ...]:
    """Whose memory there may be: the names of the keys; without keys there is one."""
    named = dict.fromkeys(key.tenant for key in settings.keys.entries)
    return tuple(named) or ("default",)


def memory_of(
    settings: Settings, targets: Mapping[str, Target], meter: Meter, traces: Traces
) -> tuple[Memory, Worker] | tuple[None, None]:
    """Memory, and who works on it in the background."""
    own = settings.memory
    if own is None:
        return None, None
    stores, models, window = stores_of(own, meter), models_of(settings, targets), _window(own)
    veil, pulse = WindowRedaction(stores.redaction), Pulse(stores.background, patience=own.deadline + LATE)
    archiving = archiving_of(own, stores, models, tenants(settings))
    summaries = Summaries(stores.background, window, summariser_of(settings, models), veil)
    worker = _worker(settings, stores.background, summaries, archiving, models)
    listeners = (traces.recorded, *_listeners(own, archiving, worker))
    writer = Writer(stores.calls, window, listeners, reasoning=own.reasoning, pulse=pulse, veil=veil)
    memory = Memory(
        store=stores.calls,
        writer=writer,
        recorder=Recorder(writer),
        episodes=_episodes(own, stores),
        summaries=summaries,
        people=People(_holdings(own, stores, archiving, traces)),
        archiving=archiving,
        pulse=pulse,
        guard=stores.guard,
        veil=veil,
    )
    return memory, worker


def _window(settings: MemorySettings) -> Window:
    window = settings.window
    return Window(
        max_messages=window.max_messages,
        keep_messages=window.kept,
        max_tokens=window.max_tokens,
        ttl=window.ttl,
        summaries=settings.summaries.max if settings.summaries else 0,
    )


def _worker(
    settings: Settings, store: Store, summaries: Summaries, archiving: Archiving | None, models: Models
) -> Worker:
    works: list[SessionJob] = [summaries] if settings.memory and settings.memory.summaries else []
    works += _learning(settings, store, archiving, models)
    return Worker(store, works, tenants(settings), tuple(_chores(store, archiving)))


def _learning(
    settings: Settings, store: Store, archiving: Archiving | None, models: Models
) -> Iterator[Learning]:
    """Who finds facts; nobody without an archive."""
    facts, extractor = settings.memory and settings.memory.facts, extractor_of(settings, models)
    if facts and extractor and archiving:
        yield Learning(store, archiving.knowledge, extractor, pause=facts.pause)


def _chores(store: Store, archiving: Archiving | None) -> Iterator[Service]:
    embedder = archiving.finder.embedder if archiving else None
    if archiving and embedder:
        yield Embedding(store, archiving.archive, embedder)


def _listeners(settings: MemorySettings, archiving: Archiving | None, worker: Worker) -> Iterator[Listener]:
    if archiving:
        yield archiving.archivist.told
    yield worker.nudge
    if settings.facts:
        yield IdleTimer(worker.look, after=settings.facts.pause).told


def _episodes(settings: MemorySettings, stores: Stores) -> Episodes:
    url, deadline = settings.sessions.get_secret_value(), settings.deadline
    opened = open_episodes(url, deadline=deadline, codec=stores.codec, store=stores.calls)
    return redacted(opened, stores.redaction)


def _holdings(
    settings: MemorySettings, stores: Stores, archiving: Archiving | None, traces: Traces
) -> tuple[Holding, ...]:
    """Every place that holds a person's words."""
    sessions = HeldSessions(stores.calls, file=file_of(settings.sessions.get_secret_value()))
    kept: list[Holding] = [Archived(archiving.archive)] if archiving else []
    if archiving and archiving.mem0:
        kept.append(archiving.mem0)
    return (*kept, sessions, TraceHolder(traces))
