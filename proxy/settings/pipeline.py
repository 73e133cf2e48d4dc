"""The settings of upstreams and pipelines."""

from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from filters.option_types import Whole
from proxy.settings import values
from proxy.settings.diagnostics import shown_errors
from proxy.settings.pipeline_tests import PipelineTest
from proxy.settings.values import (
    Accepts,
    AnswerStep,
    Duration,
    ForwardedHeader,
    Frozen,
    IdentityPlace,
    RequestStep,
    SentHeader,
    SentValue,
    SettingsModel,
    UpstreamName,
    allowed_names,
    at_least_one,
    signing_secret,
)

Tool = Literal["memory_store", "memory_recall", "memory_forget"]


class Upstream(SettingsModel):
    """A model that requests are sent to."""

    base_url: Annotated[
        str,
        AfterValidator(shown_errors(values.check_base_url)),
        Field(json_schema_extra={"pattern": "^practice:$|^[hH][tT][tT][pP][sS]?://"}),
    ]
    """Up to and including ``/v1``; ``practice:`` is the practice model, which needs no network."""
    api_key: Annotated[SecretStr, AfterValidator(shown_errors(values.check_token))] = SecretStr("")
    """Sent as the bearer key; empty sends none."""
    model: str = ""
    """The model's name at this upstream; empty takes the request's."""
    accepts: Accepts = "openai"
    """The provider whose fields the upstream accepts; nothing else reaches it."""
    allow: Annotated[tuple[str, ...], AfterValidator(shown_errors(allowed_names))] = ()
    """Further field names, at the top level and in messages, that go on with ``accepts: any``."""
    connect: Duration = 2.0
    """How long a connection may take to stand. One stands before the first call."""
    first_token: Duration = 5.0
    """How long the model may take until it says anything, in each attempt."""
    first_content: Duration | None = None
    """How long it may take to say more than reasoning, which is held back until then; off unless set."""
    total: Duration = 60.0
    """How long a whole answer may take, with all tries; upstreams share it where nothing is streamed."""
    retries: Annotated[Whole, Field(ge=0, le=10)] = 1
    """How often a turn tries again when the upstream fails before it has said anything."""
    max_connections: Annotated[Whole, Field(ge=1)] = 1000
    """How many requests may be under way at once."""
    headers: Frozen[SentHeader, SentValue] = Field(default_factory=lambda: MappingProxyType({}))
    """Sent with every request to this upstream."""
    forward_headers: tuple[ForwardedHeader, ...] = ()
    """The client's headers that go on."""
    forward_key: bool = False
    """Whether the client's own bearer key goes on, in place of ``api_key``."""


class Identity(SettingsModel):
    """Where a request names its session and user; the first place with an id counts."""

    session: tuple[IdentityPlace, ...] | None = None
    """Where the session's name stands; left out, the usual places of each dialect."""
    user: tuple[IdentityPlace, ...] | None = None
    """Where the user's name stands; left out, the usual places of each dialect."""
    user_hmac: Annotated[SecretStr, AfterValidator(shown_errors(signing_secret))] = SecretStr("")
    """Demands ``X-User-Hmac`` with each user's id: its HMAC-SHA256 in hexadecimal under this secret.

    ``user`` left out, the id is then read from ``X-User-Id`` alone.
    """
    default_session: str = ""
    """The session of requests that name none; empty means no session."""


class Pipeline(SettingsModel):
    """What happens to a request on its way to the model."""

    upstreams: Annotated[tuple[UpstreamName, ...], AfterValidator(shown_errors(at_least_one))] = Field(
        json_schema_extra={"minItems": 1}
    )
    """Names of upstreams; each further one is tried when those before it fail."""
    model: str = ""
    """The model's name; empty takes the upstream's, else the request's."""
    first_token: Duration | None = None
    """How long all upstreams together may take to say anything; left out, the sum of what each may take."""
    hedge: Duration | None = None
    """When the first delta is so late, the next upstream is tried as well; off unless set."""
    keep_alive: Duration | None = None
    """How long a stream may be silent before a comment is sent; off unless set."""
    identity: Identity = Identity()
    """Where session and user are named, in place of the usual places of each dialect."""
    request: tuple[RequestStep, ...] = ()
    """The filters between the client's request and the model, in the order in which they run."""
    failing: Literal["refuse", "skip"] = "refuse"
    """A request filter that raises an error: the turn is refused, or goes on without it and says so."""
    tools: tuple[Tool, ...] = ()
    """Memory tools that the model may call; the proxy carries them out within the answer."""
    tool_rounds: Annotated[Whole, Field(ge=1, le=10)] = 4
    """How often the model is called again in one answer, after its tool calls have been carried out."""
    answer: tuple[AnswerStep, ...] = ()
    """The filters between the model's answer and the client, in the order in which they run."""
    tests: tuple[PipelineTest, ...] = ()
    """What must become of some requests; ``turnkeeper test`` tries it, and serving does not look at it."""
