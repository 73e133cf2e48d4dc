"""What is remembered with, as a configuration says, and who works on it."""

from collections.abc import Mapping

from proxy.configuration.settings import Memory as MemorySettings
from proxy.configuration.settings import Settings
from proxy.configuration.settings import Summaries as SummarySettings
from proxy.inquiry import Inquiry
from proxy.memory.archive.archivist import Archivist
from proxy.memory.archive.open import open_archive
from proxy.memory.archive.recollection import Recollection
from proxy.memory.codec import Codec
from proxy.memory.episodes.open import open_episodes
from proxy.memory.guard import Guard
from proxy.memory.knowledge import Knowledge
from proxy.memory.metered import Meter, Metered
from proxy.memory.open import open_store
from proxy.memory.people import Archived, HeldSessions, People
from proxy.memory.plan import Window
from proxy.memory.sealing import codec_of
from proxy.memory.store import Store
from proxy.memory.summaries import Summaries
from proxy.pipeline import Archiving, Memory, Target
from proxy.practice import Practice
from proxy.record import Recorder
from proxy.summariser import Summariser
from proxy.traces import KeptTurns, Traces
from proxy.work import Worker


def _tenants(settings: Settings) -> tuple[str, ...]:
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
    codec = codec_of([key.get_secret_value() for key in own.encryption])
    opened = open_store(url, deadline=deadline, codec=codec)
    store = Metered(Guard(opened, patience=deadline / 4), meter)
    # Work in the background waits where it must, and shuts the store off for nobody.
    summaries = Summaries(opened, window, _summariser(own.summaries, targets))
    worker = Worker(opened, [summaries] if own.summaries else [], _tenants(settings))
    archiving = _archiving(own, store, codec, _tenants(settings))
    archivist = (archiving.archivist.told,) if archiving else ()
    holdings = (Archived(archiving.archive),) if archiving else ()
    memory = Memory(
        store,
        Recorder(store, window, (traces.recorded, *archivist, worker.nudge), reasoning=own.reasoning),
        open_episodes(url, deadline=deadline, codec=codec, store=store),
        summaries,
        People((*holdings, HeldSessions(store, ttl=window.ttl), KeptTurns(traces))),
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
