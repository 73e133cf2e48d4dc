from typing import Annotated

from pydantic import Field

from filters.number import Whole
from proxy.configuration.part import Part
from proxy.configuration.value import Duration, UpstreamName


class Summaries(Part):
    """Who summarises the oldest turns of a session, and how."""

    upstream: UpstreamName
    """The upstream that is asked; with ``practice:`` summaries are made of the turns' own sentences."""
    model: str = ""
    """The model's name; empty takes what the session last used."""
    fallback: str = ""
    """The model that is asked when the first one fails; empty asks none."""
    max: Annotated[Whole, Field(ge=1, le=100)] = 10
    """How many summaries a session has at the most; beyond it the oldest are merged, never dropped."""
    input_tokens: Annotated[Whole, Field(ge=500)] = 6000
    """How much the model is given at once; what is longer is summarised in several pieces."""
    timeout: Duration = 60.0
    """How long one answer may take."""
