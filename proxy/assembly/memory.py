"""What is remembered with, as a configuration says, and who works on it."""

from collections.abc import Iterator, Mapping

from filters.redact import Redact
from proxy.assembly.recall import finder_of
from proxy.assembly.stores import edge, elsewhere_of, file_of, guarded, rounds
from proxy.assembly.targets import targets_of
from proxy.assembly.zone import common_zone
from proxy.background.discretion import Discretion
from proxy.background.extractor import Extractor
from proxy.background.inquiry import Inquiry
from proxy.background.pause import Pause
from proxy.background.summariser import Summariser
from proxy.background.work import Chore, Work
from proxy.background.worker import Worker
from proxy.configuration.settings import Memory as MemorySettings
from proxy.configuration.settings import Settings
from proxy.configuration.settings import Summaries as SummarySettings
from proxy.errors import ConfigError
from proxy.memory.archive.archive import Archive
from proxy.memory.archive.archived import Archived
from proxy.memory.archive.archivist import Archivist
from proxy.memory.archive.embedding import Embedding
from proxy.memory.archive.finder import Finder
from proxy.memory.archive.open import open_archive
from proxy.memory.archive.passages import Passages
from proxy.memory.codec import Codec
from proxy.memory.episodes.open import open_episodes
from proxy.memory.episodes.redacted import redacted
from proxy.memory.facts.acquaintance import Acquaintance
from proxy.memory.facts.knowledge import MOST, Knowledge
from proxy.memory.facts.learning import Learning
from proxy.memory.facts.mem0 import Mem0, open_mem0
from proxy.memory.held_sessions import HeldSessions
from proxy.memory.metered import Meter, Metered
from proxy.memory.people import Holding, People
from proxy.memory.pulse import LATE, Pulse
from proxy.memory.recent import Recent
from proxy.memory.redaction.redaction import NOTHING, Redaction
from proxy.memory.redaction.veil import Veil
from proxy.memory.sealing import codec_of
from proxy.memory.sql.elsewhere import Elsewhere
from proxy.memory.store import Store
from proxy.memory.summaries.plan import Window
from proxy.memory.summaries.summaries import Summaries
from proxy.pipeline import Target
from proxy.practice import Practice
from proxy.record import Listener, Recorder
from proxy.remembering import Archiving, Memory
from proxy.traces.traces import KeptTurns, Traces


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
    if settings.memory is None:
        return None, None
    own, deadline = settings.memory, settings.memory.deadline
    url, window = own.sessions.get_secret_value(), _window(own)
    codec, redaction = codec_of([key.get_secret_value() for key in own.encryption]), _redaction(own)
    veil, elsewhere = Veil(redaction), elsewhere_of(url)
    guard, behind = guarded(url, deadline, edge(codec, redaction), elsewhere)
    store = Recent(Metered(guard, meter), rounds=rounds(url))
    discretion = _discretion(settings)
    summaries = Summaries(behind, window, _summariser(own.summaries, targets, discretion), veil)
    archive = _archive(own, codec, elsewhere, redaction)
    finder = finder_of(archive, own.recall, targets, discretion) if archive else None
    archiving = _archiving(own, store, archive, tenants(settings), finder, redaction=redaction)
    works: list[Work] = [summaries] if own.summaries else []
    works += _learning(settings, behind, archiving, targets, discretion)
    worker = Worker(behind, works, tenants(settings), tuple(_chores(behind, archiving)))
    listeners = (traces.recorded, *_listeners(own, archiving, worker))
    pulse = Pulse(behind, patience=deadline + LATE)
    memory = Memory(
        store,
        Recorder(store, window, listeners, reasoning=own.reasoning, pulse=pulse, veil=veil),
        redacted(open_episodes(url, deadline=deadline, codec=codec, store=store), redaction),
        summaries,
        People((*_holdings(archiving), HeldSessions(store, file=file_of(url)), KeptTurns(traces))),
        archiving,
        pulse,
        guard,
        veil,
    )
    return memory, worker


def _redaction(settings: MemorySettings) -> Redaction:
    """What is never stored."""
    return Redaction(settings.redact.marking) if settings.redact else NOTHING


def _holdings(archiving: Archiving | None) -> Iterator[Holding]:
    if archiving:
        yield Archived(archiving.archive)
        if archiving.mem0:
            yield archiving.mem0


def _listeners(settings: MemorySettings, archiving: Archiving | None, worker: Worker) -> Iterator[Listener]:
    if archiving:
        yield archiving.archivist.told
    yield worker.nudge
    if settings.facts:
        yield Pause(worker.look, after=settings.facts.pause).told


def _chores(store: Store, archiving: Archiving | None) -> Iterator[Chore]:
    embedder = archiving.finder.embedder if archiving else None
    if archiving and embedder:
        yield Embedding(store, archiving.archive, embedder)


def _learning(
    settings: Settings,
    store: Store,
    archiving: Archiving | None,
    targets: Mapping[str, Target],
    discretion: Discretion,
) -> Iterator[Learning]:
    """Who finds facts; nobody without an archive, or where the model could only tell what it was shown."""
    own = settings.memory.facts if settings.memory else None
    target = targets[own.upstream] if own else None
    if own is None or target is None or archiving is None or isinstance(target.upstream, Practice):
        return
    inquiry = Inquiry(target, timeout=own.timeout)
    zone = common_zone(settings.pipelines)
    model = own.model or target.model or ""
    finder = Extractor(inquiry, model=model, fallback=own.fallback, zone=zone, discretion=discretion)
    yield Learning(store, archiving.knowledge, finder, pause=own.pause)


def _window(settings: MemorySettings) -> Window:
    window = settings.window
    return Window(
        max_messages=window.max_messages,
        keep_messages=window.kept,
        max_tokens=window.max_tokens,
        ttl=window.ttl,
        summaries=settings.summaries.max if settings.summaries else 0,
    )


def _discretion(settings: Settings) -> Discretion:
    """What any chain keeps from a model, or is never stored, is kept from those asked in the background."""
    steps = [step for one in settings.pipelines.values() for step in one.request if isinstance(step, Redact)]
    stored = settings.memory.redact if settings.memory else None
    return Discretion((stored.marking, *steps) if stored else steps)


def _summariser(
    settings: SummarySettings | None, targets: Mapping[str, Target], discretion: Discretion
) -> Summariser | None:
    """The model that writes summaries; none where it could only tell what it was shown."""
    target = targets[settings.upstream] if settings else None
    if settings is None or target is None or isinstance(target.upstream, Practice):
        return None
    return Summariser(
        Inquiry(target, timeout=settings.timeout),
        model=settings.model or target.model or "",
        fallback=settings.fallback,
        input_tokens=settings.input_tokens,
        discretion=discretion,
    )


def _archive(
    settings: MemorySettings, codec: Codec, elsewhere: Elsewhere | None, redaction: Redaction
) -> Archive | None:
    """The archive; ``elsewhere`` is of the sessions' file."""
    url = settings.archive_url
    beside = elsewhere if url == settings.sessions.get_secret_value() else None
    return open_archive(url, codec=codec, elsewhere=beside, redaction=redaction) if url else None


def _archiving(  # noqa: PLR0913 - what it is put together from
    settings: MemorySettings,
    store: Store,
    archive: Archive | None,
    tenants: tuple[str, ...],
    finder: Finder | None,
    *,
    redaction: Redaction,
) -> Archiving | None:
    if archive is None or finder is None:
        return None
    archivist = Archivist(store, archive, tenants, keep=settings.archive.seconds)
    passages = Passages(finder, deadline=settings.deadline)
    most = settings.facts.max if settings.facts else MOST
    mem0 = _mem0(settings)
    knowledge = Knowledge(mem0 or archive, most=most, talk=settings.window.ttl, redaction=redaction)
    acquaintance = Acquaintance(knowledge, deadline=settings.deadline)
    return Archiving(archive, finder, archivist, passages, knowledge, acquaintance, mem0)


def _mem0(settings: MemorySettings) -> Mem0 | None:
    """Raises ConfigError where the library does not take its options."""
    if settings.facts is None or settings.facts.store != "mem0":
        return None
    try:
        return open_mem0(settings.facts.mem0)
    except ValueError as error:
        raise ConfigError(f"memory.facts: {error}") from None
