"""A model behind OpenAI's ``/embeddings``: what texts mean."""

from collections.abc import Sequence
from typing import Final

import msgspec

from proxy.background.discretion import Discretion
from proxy.background.endpoint import Endpoint, beginning
from proxy.errors import UpstreamBroken
from proxy.memory.archive.vector import Vector, unit
from proxy.target import Target

_PATH: Final = "/embeddings"
# About 2,000 tokens of English: what most models take.
_LONGEST: Final = 8000


class _Line(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


class _Answer(msgspec.Struct):
    data: list[_Line]


class HttpEmbedder:
    """One model. ``timeout`` is in seconds, for one request."""

    def __init__(
        self, target: Target, *, model: str, timeout: float, discretion: Discretion | None = None
    ) -> None:
        self._shown = (discretion or Discretion()).text
        self.model = model
        self._endpoint = Endpoint(target, _PATH, timeout=timeout)

    async def vectors(self, texts: Sequence[str]) -> list[Vector]:
        """A vector for the beginning of each text, in order; raises UpstreamError."""
        begun = [beginning(self._shown(text), _LONGEST) for text in texts]
        asked = {"model": self.model, "input": begun, "encoding_format": "float"}
        answer = await self._endpoint.ask(asked, _Answer)
        places = [place if line.index is None else line.index for place, line in enumerate(answer.data)]
        if sorted(places) != list(range(len(texts))):
            raise UpstreamBroken("The embeddings are not one for each text.")
        try:
            found = {place: unit(line.embedding) for place, line in zip(places, answer.data, strict=True)}
        except (ValueError, OverflowError):
            raise UpstreamBroken("An embedding is no vector.") from None
        return [found[place] for place in range(len(texts))]
