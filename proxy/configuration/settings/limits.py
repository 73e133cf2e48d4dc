from typing import Annotated

from pydantic import Field

from filters.number import Whole
from proxy.configuration.part import Part


class Limits(Part):
    """What each key may have, shared by all servers on one Redis; 0 is no limit."""

    requests_per_minute: Annotated[Whole, Field(ge=0)] = 0
    """How many turns in a minute, which begins with the first of them."""
    tokens_per_minute: Annotated[Whole, Field(ge=0)] = 0
    """How many tokens, of prompts and answers; a turn is admitted while any are left."""
    concurrent_streams: Annotated[Whole, Field(ge=0)] = 0
    """How many turns at once, in each process."""
