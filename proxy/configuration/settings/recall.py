from typing import Annotated

from pydantic import Field

from filters.number import Whole
from proxy.configuration.part import Part
from proxy.configuration.value import Duration, UpstreamName

Share = Annotated[float, Field(ge=0, le=1)]


class Embeddings(Part):
    """A model that finds what means the same in other words; it is sent all that is archived."""

    upstream: UpstreamName
    """The upstream that is asked, at ``/embeddings``; with ``practice:`` nothing is."""
    model: str = ""
    """The model's name; empty takes the upstream's, else ``default``. Under a new one all is sent again."""
    weight: Share = 0.4
    """What the same meaning counts, beside 1 for all the same words."""
    least: Annotated[float, Field(ge=0, lt=1)] = 0.3
    """How alike (a cosine) a meaning must be to count at all."""
    timeout: Duration = 10.0
    """How long one answer may take in the background."""


class Rerank(Part):
    """A model that puts what was found in order."""

    upstream: UpstreamName
    """The upstream that is asked, at ``/rerank``; with ``practice:`` nothing is."""
    model: str = ""
    """The model's name; empty takes the upstream's, else ``default``."""
    top: Annotated[Whole, Field(ge=2, le=100)] = 30
    """How many of the best are put in order."""


class RecallAids(Part):
    """Models that help recall, as far as they answer within its deadline; left out, words alone count."""

    embeddings: Embeddings | None = None
    """Who finds what means the same in other words."""
    rerank: Rerank | None = None
    """Who puts what was found in order."""
