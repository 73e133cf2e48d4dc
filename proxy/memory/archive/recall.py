"""The archive's answers to a question, made better by models as far as there is time."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, tzinfo
from typing import Final, NamedTuple, Protocol, TypeVar

import msgspec

from filters.remembered import Remembered
from proxy.errors import UpstreamError
from proxy.memory.archive.archive import Archive
from proxy.memory.archive.embeddings import Embedder
from proxy.memory.archive.records import Query, QueryVector, SearchResult
from proxy.memory.errors import StoreError
from proxy.memory.stores.store import Owner
from proxy.memory.tasks import retrieve_exception, wait_for

T = TypeVar("T")
_log = logging.getLogger("turnkeeper")
MODEL_TIMEOUT: Final = 2.0
"""How long the models have where nobody is on the line, in seconds."""
# What is left at the end is for the way back.
_SHARE: Final = 0.9
_FAILURES: Final = 3
_SHUT: Final = 10.0
_SLOW: Final = 3
# The filter leaves out what the window shows, and what says the same twice.
_SPARE: Final = 20


class Reranker(Protocol):
    """A model that says how well texts answer a question."""

    async def relevance(self, question: str, texts: Sequence[str]) -> list[float]:
        """How well each text answers, in order. Raises UpstreamError."""
        ...


class VectorSearch(NamedTuple):
    """Who says what a question means, and what that counts beside its words; as in ``Meaning``."""

    embedder: Embedder
    weight: float
    threshold: float


class Reranking(NamedTuple):
    """Who puts the first ``top`` answers in order."""

    reranker: Reranker
    top: int


class Retriever:
    """Searches an archive. A model that is too slow, or fails, costs no answer.

    One that failed or was late three times in a row is left alone for ten seconds.
    """

    def __init__(
        self, archive: Archive, *, likeness: VectorSearch | None = None, order: Reranking | None = None
    ) -> None:
        self._archive = archive
        self._likeness = likeness
        self._order = order
        self._embedding = _Trust("embeddings")
        self._ranking = _Trust("rerank")

    @property
    def embedder(self) -> Embedder | None:
        """Who says what texts mean, if anybody does."""
        return self._likeness.embedder if self._likeness else None

    async def search(
        self, person: Owner, query: Query, *, within: float = MODEL_TIMEOUT
    ) -> list[SearchResult]:
        """What answers a question, best first; the models have ``within`` seconds. Raises StoreError."""
        if not (self._likeness or self._order) or not person.user:
            return await self._archive.search(person, query)
        due = asyncio.get_running_loop().time() + _SHARE * within
        top = self._order.top if self._order else 0
        found = await self._found(person, msgspec.structs.replace(query, limit=max(query.limit, top)), due)
        return (await self._ranked(query.text, found, due))[: query.limit]

    async def _found(self, person: Owner, query: Query, due: float) -> list[SearchResult]:
        by_words = asyncio.ensure_future(self._archive.search(person, query))
        by_words.add_done_callback(retrieve_exception)
        meaning = await self._meaning(query.text, due)
        if meaning is None:
            return await by_words
        try:
            async with asyncio.timeout_at(due):
                return await self._archive.search(person, msgspec.structs.replace(query, vector=meaning))
        except (TimeoutError, StoreError):
            return await by_words

    async def _meaning(self, text: str, due: float) -> QueryVector | None:
        if self._likeness is None or not text.strip():
            return None
        embedder, weight, least = self._likeness
        vectors = await self._embedding.ask(lambda: embedder.vectors([text]), due)
        if vectors is None:
            return None
        return QueryVector(model=embedder.model, vector=vectors[0], weight=weight, threshold=least)

    async def _ranked(self, question: str, found: list[SearchResult], due: float) -> list[SearchResult]:
        """What is put in order bears the model's score, and what comes after it no higher one."""
        if self._order is None or not found:
            return found
        first, rest = found[: self._order.top], found[self._order.top :]
        texts, reranker = [one.text for one in first], self._order.reranker
        relevance = await self._ranking.ask(lambda: reranker.relevance(question, texts), due)
        if relevance is None:
            return found
        pairs = sorted(zip(relevance, first, strict=True), key=lambda pair: -pair[0])
        least = pairs[-1][0]
        ordered = [_scored(one, score) for score, one in pairs]
        return ordered + [_scored(one, min(one.score, least)) for one in rest]


class _Trust:
    """Whether a model is worth asking, by how it did of late."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._failures = 0
        self._shut_until = 0.0

    async def ask(self, asking: Callable[[], Awaitable[T]], due: float) -> T | None:
        """The answer; ``None`` where there is none by then."""
        loop = asyncio.get_running_loop()
        if not self._shut_until <= loop.time() < due:
            return None
        try:
            async with asyncio.timeout_at(due):
                answer = await asking()
        except (UpstreamError, TimeoutError) as error:
            self._failed(loop.time(), error)
            return None
        self._failures = 0
        return answer

    def _failed(self, now: float, error: Exception) -> None:
        _log.debug("Recall goes without %s: %s", self._name, type(error).__name__)
        self._failures += 1
        if self._failures >= _FAILURES:
            self._shut_until = now + _SHUT


def _scored(found: SearchResult, score: float) -> SearchResult:
    return msgspec.structs.replace(found, score=round(score, 4))


_PAUSE: Final = 0.5


class RecallReader:
    """Asks the archive on behalf of calls, which it keeps waiting for ``deadline`` seconds at most.

    An archive that was too slow three times in a row is left alone for half a second.
    """

    def __init__(self, finder: Retriever, *, deadline: float) -> None:
        self._finder = finder
        self._deadline = deadline
        self._shut_until = 0.0
        self._slow = 0

    async def search(
        self, person: Owner, text: str, *, now: float, limit: int, zone: tzinfo = UTC
    ) -> tuple[Remembered, ...]:
        """What answers a text, best first, with some to spare. Raises StoreError."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._shut_until:
            raise StoreError("the archive did not answer in time a moment ago")
        query = Query(text=text, now=now, limit=3 * limit + _SPARE, zone=zone)
        try:
            look = self._finder.search(person, query, within=self._deadline)
            found = await wait_for(look, self._deadline)
        except TimeoutError:
            self._slow += 1
            if self._slow >= _SLOW:
                self._shut_until = loop.time() + _PAUSE
            raise StoreError("the archive is too slow") from None
        self._slow = 0
        return _told(found)


def _told(found: Sequence[SearchResult]) -> tuple[Remembered, ...]:
    return tuple(
        Remembered(
            kind=one.kind,
            text=one.text,
            score=one.score,
            role=one.role,
            source=one.source or one.session_id,
            at=one.timestamp,
        )
        for one in found
    )
