"""Recall: searches the archive for calls, within a deadline, with the help of models."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, tzinfo
from itertools import accumulate
from typing import Final, NamedTuple, Protocol, TypeVar

import msgspec

from filters.injection import Remembered
from proxy.circuit import Backoff, CircuitBreaker
from proxy.errors import UpstreamError
from proxy.memory.archive.archive import Archive
from proxy.memory.archive.embeddings import Embedder
from proxy.memory.archive.records import Query, QueryVector, SearchResult
from proxy.memory.errors import StoreError
from proxy.memory.stores.store import Owner
from proxy.memory.tasks import retrieve_exception, wait_for

T = TypeVar("T")

MODEL_TIMEOUT: Final = 2.0
"""The time-out in seconds of models while no call waits."""
# The rest is for reading and returning the results.
_MODELS_SHARE: Final = 0.9
_FAILURES: Final = 3
_MODEL_PAUSE: Final = Backoff(10.0, 10.0)
_ARCHIVE_PAUSE: Final = Backoff(0.5, 0.5)
# The filter drops results that the window shows, and duplicates.
_SPARE: Final = 20

_log = logging.getLogger("turnkeeper")


class Reranker(Protocol):
    """A model that judges how well texts answer a question."""

    async def relevance(self, question: str, texts: Sequence[str]) -> list[float]:
        """Returns how well each text answers, in order. Raises UpstreamError."""
        ...


class VectorSearch(NamedTuple):
    """The model that embeds questions, and the weight and threshold of a ``QueryVector``."""

    embedder: Embedder
    weight: float
    threshold: float


class Reranking(NamedTuple):
    """The model that reorders the first ``top`` results."""

    reranker: Reranker
    top: int


class Searcher(Protocol):
    """Searches the memory of a user."""

    async def search(self, user: Owner, query: Query, *, within: float = MODEL_TIMEOUT) -> list[SearchResult]:
        """Returns results, the best first; models have ``within`` seconds. Raises StoreError."""
        ...


class Retriever:
    """Searches an archive. A model that is too slow or fails does not reduce the results.

    A model that fails or is late three times in a row is not used for ten seconds.
    """

    def __init__(
        self, archive: Archive, *, vectors: VectorSearch | None = None, reranking: Reranking | None = None
    ) -> None:
        self._archive = archive
        self._vectors = vectors
        self._reranking = reranking
        self._embedding_breaker = CircuitBreaker(_MODEL_PAUSE, threshold=_FAILURES)
        self._rerank_breaker = CircuitBreaker(_MODEL_PAUSE, threshold=_FAILURES)

    @property
    def embedder(self) -> Embedder | None:
        """The model that embeds texts, if there is one."""
        return self._vectors.embedder if self._vectors else None

    async def search(self, user: Owner, query: Query, *, within: float = MODEL_TIMEOUT) -> list[SearchResult]:
        """Returns results, the best first; models have ``within`` seconds. Raises StoreError."""
        if not (self._vectors or self._reranking) or not user.user:
            return await self._archive.search(user, query)
        due = asyncio.get_running_loop().time() + _MODELS_SHARE * within
        top = self._reranking.top if self._reranking else 0
        wide = msgspec.structs.replace(query, limit=max(query.limit, top))
        results = await self._rerank(query.text, await self._search(user, wide, due), due)
        hits = accumulate(not one.follows for one in results)
        return [one for one, count in zip(results, hits, strict=True) if count <= query.limit]

    async def _search(self, user: Owner, query: Query, due: float) -> list[SearchResult]:
        """Searches by words and vectors; by words only if the vector or its results come too late."""
        by_words = asyncio.ensure_future(self._archive.search(user, query))
        by_words.add_done_callback(retrieve_exception)
        if self._vectors is None or not query.text.strip():
            return await by_words
        embedder, weight, threshold = self._vectors
        vectors = await _ask(
            "embeddings", self._embedding_breaker, lambda: embedder.vectors([query.text]), due
        )
        if vectors is None:
            return await by_words
        vector = QueryVector(model=embedder.model, vector=vectors[0], weight=weight, threshold=threshold)
        try:
            async with asyncio.timeout_at(due):
                return await self._archive.search(user, msgspec.structs.replace(query, vector=vector))
        except (TimeoutError, StoreError):
            return await by_words

    async def _rerank(self, question: str, results: list[SearchResult], due: float) -> list[SearchResult]:
        """Orders the first results by the reranker's scores; the others follow, with no higher score."""
        if self._reranking is None or not results:
            return results
        reranker, top = self._reranking
        # A result that follows another one stays after it.
        groups: list[list[SearchResult]] = []
        for one in results:
            if one.follows:
                groups[-1].append(one)
            else:
                groups.append([one])
        first, rest = groups[:top], groups[top:]
        texts = [group[0].text for group in first]
        relevance = await _ask(
            "rerank", self._rerank_breaker, lambda: reranker.relevance(question, texts), due
        )
        if relevance is None:
            return results
        scored = sorted(zip(relevance, first, strict=True), key=lambda pair: -pair[0])
        lowest = scored[-1][0]
        scored += [(min(group[0].score, lowest), group) for group in rest]
        return [
            msgspec.structs.replace(one, score=round(score, 4)) for score, group in scored for one in group
        ]


async def _ask(
    name: str, breaker: CircuitBreaker, request: Callable[[], Awaitable[T]], due: float
) -> T | None:
    """Returns a model's answer; ``None`` if it fails or does not come before ``due``."""
    if asyncio.get_running_loop().time() >= due or not breaker.admit():
        return None
    try:
        async with asyncio.timeout_at(due):
            answer = await request()
    except (UpstreamError, TimeoutError) as error:
        _log.debug("Recall goes without %s: %s", name, type(error).__name__)
        breaker.record_failure()
        return None
    breaker.record_answer()
    breaker.record_success()
    return answer


class RecallReader:
    """Searches for calls, within ``deadline`` seconds.

    An archive that is too slow three times in a row is not used for half a second.
    """

    def __init__(self, retriever: Searcher, *, deadline: float) -> None:
        self._retriever = retriever
        self._deadline = deadline
        self._breaker = CircuitBreaker(_ARCHIVE_PAUSE, threshold=_FAILURES)

    async def search(
        self, user: Owner, text: str, *, now: float, limit: int, zone: tzinfo = UTC
    ) -> tuple[Remembered, ...]:
        """Returns results for a text, the best first and more than ``limit``. Raises StoreError."""
        if not self._breaker.admit():
            raise StoreError("the archive did not answer in time a moment ago")
        query = Query(text=text, now=now, limit=3 * limit + _SPARE, zone=zone, following=True)
        try:
            search = self._retriever.search(user, query, within=self._deadline)
            results = await wait_for(search, self._deadline)
        except TimeoutError:
            self._breaker.record_failure()
            raise StoreError("the archive is too slow") from None
        self._breaker.record_answer()
        self._breaker.record_success()
        return tuple(
            Remembered(
                kind=one.kind,
                text=one.text,
                score=one.score,
                role=one.role,
                source=one.source or one.session_id,
                at=one.timestamp,
                follows=one.follows,
            )
            for one in results
        )
