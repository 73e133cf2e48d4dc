"""Where turns are kept for good, as a configuration says, and what is made of them."""

from proxy.assembly.models import Models
from proxy.assembly.recall import finder_of
from proxy.assembly.stores import Stores
from proxy.configuration.settings import Memory as MemorySettings
from proxy.errors import ConfigError
from proxy.memory.archive.archive import Archive
from proxy.memory.archive.archivist import Archivist
from proxy.memory.archive.open import open_archive
from proxy.memory.archive.passages import Passages
from proxy.memory.facts.acquaintance import Acquaintance
from proxy.memory.facts.knowledge import MOST, Knowledge
from proxy.memory.facts.mem0 import Mem0, open_mem0
from proxy.remembering import Archiving


def archiving_of(
    settings: MemorySettings, stores: Stores, models: Models, tenants: tuple[str, ...]
) -> Archiving | None:
    """The archive, and who works on it; none where no turn is kept for good."""
    archive = _archive(settings, stores)
    if archive is None:
        return None
    finder, mem0 = finder_of(archive, settings.recall, models), _mem0(settings)
    knowledge = _knowledge(settings, stores, mem0 or archive)
    return Archiving(
        archive=archive,
        finder=finder,
        archivist=Archivist(stores.calls, archive, tenants, keep=settings.archive.seconds),
        passages=Passages(finder, deadline=settings.deadline),
        knowledge=knowledge,
        acquaintance=Acquaintance(knowledge, deadline=settings.deadline),
        mem0=mem0,
    )


def _archive(settings: MemorySettings, stores: Stores) -> Archive | None:
    url = settings.archive_url
    beside = stores.elsewhere if url == settings.sessions.get_secret_value() else None
    if not url:
        return None
    return open_archive(url, codec=stores.codec, elsewhere=beside, redaction=stores.redaction)


def _knowledge(settings: MemorySettings, stores: Stores, shelf: Archive | Mem0) -> Knowledge:
    most = settings.facts.max if settings.facts else MOST
    return Knowledge(shelf, most=most, conversation=settings.window.ttl, redaction=stores.redaction)


def _mem0(settings: MemorySettings) -> Mem0 | None:
    """Raises ConfigError where the library does not take its options."""
    if settings.facts is None or settings.facts.store != "mem0":
        return None
    try:
        return open_mem0(settings.facts.mem0)
    except ValueError as error:
        raise ConfigError(f"memory.facts: {error}") from None
