from typing import Annotated

from pydantic import Field

from filters.number import Whole
from proxy.configuration.part import Part


class Traces(Part):
    """What is kept of turns to be looked at on the web page, in the process alone."""

    keep: Annotated[Whole, Field(ge=0, le=10_000)] = 200
    """How many turns; the oldest are let go, and sooner where they have more than 16 MB between them."""
    content: bool = True
    """Whether what was said is kept too; without it, only when, who and how long."""
