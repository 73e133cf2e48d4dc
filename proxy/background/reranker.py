"""A model behind ``/rerank`` as Cohere, Jina and vLLM offer it: how well texts answer a question."""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from proxy.background.discretion import Discretion
from proxy.background.endpoint import Endpoint, beginning
from proxy.errors import UpstreamBroken
from proxy.target import Target

_PATH: Final = "/rerank"
# About 500 tokens of English each.
_LONGEST: Final = 2000


class _Line(msgspec.Struct):
    index: int
    relevance_score: float


class _Answer(msgspec.Struct):
    results: list[_Line]


class HttpReranker:
    """One model. ``timeout`` is in seconds, for one request."""

    def __init__(
        self, target: Target, *, model: str, timeout: float, discretion: Discretion | None = None
    ) -> None:
        self._shown = (discretion or Discretion()).text
        self._model = model
        self._endpoint = Endpoint(target, _PATH, timeout=timeout)

    async def relevance(self, question: str, texts: Sequence[str]) -> list[float]:
        """How well the beginning of each text answers, in order; raises UpstreamError."""
        documents = [beginning(self._shown(text), _LONGEST) for text in texts]
        asked = {
            "model": self._model,
            "query": beginning(self._shown(question), _LONGEST),
            "documents": documents,
        }
        answer = await self._endpoint.ask({**asked, "top_n": len(texts)}, _Answer)
        found = {line.index: line.relevance_score for line in answer.results}
        if sorted(line.index for line in answer.results) != list(range(len(texts))):
            raise UpstreamBroken("The ranking does not name each text once.")
        if not all(map(math.isfinite, found.values())):
            raise UpstreamBroken("A text's relevance is no number.")
        return [found[place] for place in range(len(texts))]
