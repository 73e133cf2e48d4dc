from types import MappingProxyType
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from filters.number import Whole
from proxy.configuration import base_url, header
from proxy.configuration.advice import advising
from proxy.configuration.part import Part
from proxy.configuration.value import (
    Accepts,
    Duration,
    ForwardedHeader,
    Frozen,
    SentHeader,
    SentValue,
    allowed_names,
)


class Upstream(Part):
    """A model that requests are sent to."""

    base_url: Annotated[
        str,
        AfterValidator(advising(base_url.base_url)),
        Field(json_schema_extra={"pattern": "^practice:$|^[hH][tT][tT][pP][sS]?://"}),
    ]
    """Up to and including ``/v1``; ``practice:`` is the practice model, which needs no network."""
    api_key: Annotated[SecretStr, AfterValidator(advising(header.token))] = SecretStr("")
    """Sent as the bearer key; empty sends none."""
    model: str = ""
    """The model's name at this upstream; empty takes the request's."""
    accepts: Accepts = "openai"
    """Whose fields the upstream understands; nothing else reaches it."""
    allow: Annotated[tuple[str, ...], AfterValidator(advising(allowed_names))] = ()
    """Further field names, at the top level and in messages, that go on with ``accepts: any``."""
    connect: Duration = 2.0
    """How long a connection may take to stand. One stands before the first call."""
    first_token: Duration = 5.0
    """How long the model may take to say anything, each time it is asked."""
    first_content: Duration | None = None
    """How long it may take to say more than reasoning, which is held back until then; off unless set."""
    total: Duration = 60.0
    """How long a whole answer may take, with all tries; upstreams share it where nothing is streamed."""
    retries: Annotated[Whole, Field(ge=0, le=10)] = 1
    """How often it is asked again in a turn when it fails before it has said anything."""
    max_connections: Annotated[Whole, Field(ge=1)] = 1000
    """How many requests may be under way at once."""
    headers: Frozen[SentHeader, SentValue] = Field(default_factory=lambda: MappingProxyType({}))
    """Sent with every request to this upstream."""
    forward_headers: tuple[ForwardedHeader, ...] = ()
    """The client's headers that go on."""
    forward_key: bool = False
    """Whether the client's own bearer key goes on, in place of ``api_key``."""
