from typing import Annotated

from pydantic import AfterValidator, Field

from filters.number import Whole
from proxy.configuration.advice import advising
from proxy.configuration.part import Part
from proxy.configuration.value import Duration, Size, listening_host


class Listen(Part):
    """Where callers are awaited."""

    host: Annotated[str, Field(min_length=1), AfterValidator(advising(listening_host))] = "127.0.0.1"
    """An address of this machine; any but a loopback address needs keys."""
    port: Annotated[Whole, Field(ge=0, le=65535)] = 8080
    """A port; 0 takes one that is free."""
    max_body: Size = 16_000_000
    """The largest request that is read."""
    max_messages: Annotated[Whole, Field(ge=1)] = 10_000
    """How many messages a request may have."""
    grace: Duration = 6.0
    """How long calls may last after SIGTERM; writing memory may take 3 s more."""
