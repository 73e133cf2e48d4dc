"""Models behind OpenAI's ``/embeddings``, and behind ``/rerank`` as Cohere, Jina and vLLM offer it."""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from proxy.background.models import ModelClient, PromptRedaction, truncated
from proxy.errors import UpstreamBroken
from proxy.memory.archive.records import Vector
from proxy.memory.archive.vectors import normalize
from proxy.upstream.target import Target

# About 2,000 tokens of English, which most models take, and about 500 of each document.
_LONGEST_TEXT: Final = 8000
_LONGEST_DOCUMENT: Final = 2000


class _Embedding(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


class _Embeddings(msgspec.Struct):
    data: list[_Embedding]


class _Score(msgspec.Struct):
    index: int
    relevance_score: float


class _Scores(msgspec.Struct):
    results: list[_Score]


class HttpEmbedder:
    """One model for embeddings. ``timeout`` is in seconds, for one request."""

    def __init__(
        self, target: Target, *, model: str, timeout: float, redaction: PromptRedaction | None = None
    ) -> None:
        self.model = model
        self._redaction = redaction or PromptRedaction()
        self._client = ModelClient(target, timeout=timeout)

    async def vectors(self, texts: Sequence[str]) -> list[Vector]:
        """A unit vector for the beginning of each text, in order; raises UpstreamError."""
        body = {
            "model": self.model,
            "input": [truncated(self._redaction.text(text), _LONGEST_TEXT) for text in texts],
            "encoding_format": "float",
        }
        lines = (await self._client.post("/embeddings", body, _Embeddings)).data
        places = [place if line.index is None else line.index for place, line in enumerate(lines)]
        if sorted(places) != list(range(len(texts))):
            raise UpstreamBroken("The embeddings are not one for each text.")
        try:
            vectors = {place: normalize(line.embedding) for place, line in zip(places, lines, strict=True)}
        except (ValueError, OverflowError):
            raise UpstreamBroken("An embedding is no vector.") from None
        return [vectors[place] for place in range(len(texts))]


class HttpReranker:
    """One model for reranking. ``timeout`` is in seconds, for one request."""

    def __init__(
        self, target: Target, *, model: str, timeout: float, redaction: PromptRedaction | None = None
    ) -> None:
        self._model = model
        self._redaction = redaction or PromptRedaction()
        self._client = ModelClient(target, timeout=timeout)

    async def relevance(self, question: str, texts: Sequence[str]) -> list[float]:
        """How well the beginning of each text answers a question, in order; raises UpstreamError."""
        query, *documents = [
            truncated(self._redaction.text(text), _LONGEST_DOCUMENT) for text in (question, *texts)
        ]
        body = {"model": self._model, "query": query, "documents": documents, "top_n": len(texts)}
        lines = (await self._client.post("/rerank", body, _Scores)).results
        if sorted(line.index for line in lines) != list(range(len(texts))):
            raise UpstreamBroken("The ranking does not name each text once.")
        scores = {line.index: line.relevance_score for line in lines}
        if not all(map(math.isfinite, scores.values())):
            raise UpstreamBroken("A text's relevance is no number.")
        return [scores[place] for place in range(len(texts))]
