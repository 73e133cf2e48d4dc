"""Who helps recall, as a configuration says."""

from typing import Final

from proxy.assembly.models import Models
from proxy.background.retrieval import HttpEmbedder, HttpReranker
from proxy.configuration.settings import Embeddings, RecallAids, Rerank
from proxy.memory.archive.archive import Archive
from proxy.memory.archive.finder import WITHIN, Finder, Likeness, Order

# Servers of one model take any name.
_UNNAMED: Final = "default"


def finder_of(archive: Archive, settings: RecallAids, models: Models) -> Finder:
    """A search of the archive with all the help that is configured."""
    likeness = _likeness(settings.embeddings, models)
    return Finder(archive, likeness=likeness, order=_order(settings.rerank, models))


def _likeness(settings: Embeddings | None, models: Models) -> Likeness | None:
    target = models.target(settings.upstream) if settings else None
    if settings is None or target is None:
        return None
    model = settings.model or target.model or _UNNAMED
    embedder = HttpEmbedder(target, model=model, timeout=settings.timeout, discretion=models.discretion)
    return Likeness(embedder, settings.weight, settings.least)


def _order(settings: Rerank | None, models: Models) -> Order | None:
    target = models.target(settings.upstream) if settings else None
    if settings is None or target is None:
        return None
    model = settings.model or target.model or _UNNAMED
    reranker = HttpReranker(target, model=model, timeout=WITHIN, discretion=models.discretion)
    return Order(reranker, settings.top)
