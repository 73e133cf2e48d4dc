"""Who helps recall, as a configuration says."""

from collections.abc import Mapping
from typing import Final

from proxy.background.discretion import Discretion
from proxy.background.embedder import HttpEmbedder
from proxy.background.reranker import HttpReranker
from proxy.configuration.settings import Embeddings, RecallAids, Rerank
from proxy.memory.archive.archive import Archive
from proxy.memory.archive.finder import WITHIN, Finder, Likeness, Order
from proxy.pipeline import Target
from proxy.practice import Practice

# Servers of one model take any name.
_UNNAMED: Final = "default"


def finder_of(
    archive: Archive, settings: RecallAids, targets: Mapping[str, Target], discretion: Discretion
) -> Finder:
    """A search of the archive with all the help that is configured."""
    likeness = _likeness(settings.embeddings, targets, discretion)
    return Finder(archive, likeness=likeness, order=_order(settings.rerank, targets, discretion))


def _likeness(
    settings: Embeddings | None, targets: Mapping[str, Target], discretion: Discretion
) -> Likeness | None:
    target = _target(settings, targets)
    if settings is None or target is None:
        return None
    model = settings.model or target.model or _UNNAMED
    embedder = HttpEmbedder(target, model=model, timeout=settings.timeout, discretion=discretion)
    return Likeness(embedder, settings.weight, settings.least)


def _order(settings: Rerank | None, targets: Mapping[str, Target], discretion: Discretion) -> Order | None:
    target = _target(settings, targets)
    if settings is None or target is None:
        return None
    model = settings.model or target.model or _UNNAMED
    reranker = HttpReranker(target, model=model, timeout=WITHIN, discretion=discretion)
    return Order(reranker, settings.top)


def _target(settings: Embeddings | Rerank | None, targets: Mapping[str, Target]) -> Target | None:
    """The upstream; none where it could only tell what it was shown."""
    target = targets[settings.upstream] if settings else None
    return None if target and isinstance(target.upstream, Practice) else target
