"""A model behind OpenAI's ``/embeddings``: what texts mean."""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from proxy.background.models import ModelEndpoint, PromptRedaction, truncated
from proxy.errors import UpstreamBroken
from proxy.memory.archive.records import Vector
from proxy.memory.archive.vectors import normalize
from proxy.upstream.target import Target

_EMBEDDINGS: Final = "/embeddings"
# About 2,000 tokens of English: what most models take.
_LONGEST_TEXT: Final = 8000
_RERANK: Final = "/rerank"
# About 500 tokens of English each.
_LONGEST_DOCUMENT: Final = 2000


class _Embedding(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


class _Embeddings(msgspec.Struct):
    data: list[_Embedding]


class HttpEmbedder:
    """One model. ``timeout`` is in seconds, for one request."""

    def __init__(
        self, target: Target, *, model: str, timeout: float, discretion: PromptRedaction | None = None
    ) -> None:
        self._shown = (discretion or PromptRedaction()).text
        self.model = model
        self._endpoint = ModelEndpoint(target, _EMBEDDINGS, timeout=timeout)

    async def vectors(self, texts: Sequence[str]) -> list[Vector]:
        """A vector for the beginning of each text, in order; raises UpstreamError."""
        begun = [truncated(self._shown(text), _LONGEST_TEXT) for text in texts]
        asked = {"model": self.model, "input": begun, "encoding_format": "float"}
        answer = await self._endpoint.ask(asked, _Embeddings)
        places = [place if line.index is None else line.index for place, line in enumerate(answer.data)]
        if sorted(places) != list(range(len(texts))):
            raise UpstreamBroken("The embeddings are not one for each text.")
        try:
            found = {
                place: normalize(line.embedding) for place, line in zip(places, answer.data, strict=True)
            }
        except (ValueError, OverflowError):
            raise UpstreamBroken("An embedding is no vector.") from None
        return [found[place] for place in range(len(texts))]


class _Score(msgspec.Struct):
    index: int
    relevance_score: float


class _Scores(msgspec.Struct):
    results: list[_Score]


class HttpReranker:
    """One model. ``timeout`` is in seconds, for one request."""

    def __init__(
        self, target: Target, *, model: str, timeout: float, discretion: PromptRedaction | None = None
    ) -> None:
        self._shown = (discretion or PromptRedaction()).text
        self._model = model
        self._endpoint = ModelEndpoint(target, _RERANK, timeout=timeout)

    async def relevance(self, question: str, texts: Sequence[str]) -> list[float]:
        """How well the beginning of each text answers, in order; raises UpstreamError."""
        documents = [truncated(self._shown(text), _LONGEST_DOCUMENT) for text in texts]
        asked = {
            "model": self._model,
            "query": truncated(self._shown(question), _LONGEST_DOCUMENT),
            "documents": documents,
        }
        answer = await self._endpoint.ask({**asked, "top_n": len(texts)}, _Scores)
        found = {line.index: line.relevance_score for line in answer.results}
        if sorted(line.index for line in answer.results) != list(range(len(texts))):
            raise UpstreamBroken("The ranking does not name each text once.")
        if not all(map(math.isfinite, found.values())):
            raise UpstreamBroken("A text's relevance is no number.")
        return [found[place] for place in range(len(texts))]
