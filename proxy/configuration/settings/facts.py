from typing import Annotated

from pydantic import Field

from proxy.configuration.part import Part
from proxy.configuration.value import Duration, UpstreamName, Whole


class Facts(Part):
    """Who finds out what there is to be known of a caller, and how much is kept."""

    upstream: UpstreamName
    """The upstream that is asked; with ``practice:`` nothing is found out."""
    model: str = ""
    """The model's name; empty takes what the session last used."""
    fallback: str = ""
    """The model that is asked when the first one fails; empty asks none."""
    max: Annotated[Whole, Field(ge=1, le=1000)] = 100
    """How many facts are known of a person at the most; beyond it the least important go."""
    pause: Duration = 20.0
    """How long nothing is said until what was said is looked at; in seconds once loaded."""
    timeout: Duration = 60.0
    """How long one answer may take; in seconds once loaded."""
