"""What a configuration says, as one frozen value."""

from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, ValidationInfo

from filters import quantity
from proxy.configuration import base_url, header
from proxy.configuration.advice import advising
from proxy.configuration.case import Case
from proxy.configuration.part import Part
from proxy.configuration.value import (
    Accepts,
    AnswerStep,
    Duration,
    ForwardedHeader,
    Frozen,
    KnownKeys,
    Name,
    Place,
    RequestStep,
    Retention,
    SentHeader,
    SentValue,
    Size,
    UpstreamName,
    Whole,
    allowed_names,
    archive_address,
    at_least_one,
    encryption_keys,
    listening_host,
    signing_secret,
    store_address,
)
from proxy.keys import Keys
from proxy.log import Format, Level
from proxy.memory.archive.open import is_archive
from proxy.tracing import address


class Listen(Part):
    """Where callers are awaited."""

    host: Annotated[str, Field(min_length=1), AfterValidator(advising(listening_host))] = "127.0.0.1"
    """An address of this machine; any but a loopback address needs keys."""
    port: Annotated[Whole, Field(ge=0, le=65535)] = 8080
    """A port; 0 takes one that is free."""
    max_body: Size = 16_000_000
    """The largest request that is read; in bytes once loaded."""
    grace: Duration = 6.0
    """How long calls may last after SIGTERM; writing memory may take 3 s more. In seconds once loaded."""


class Log(Part):
    """What is written to stderr: a line for each turn that has ended, and what goes wrong."""

    format: Format = "text"
    """``text`` for people, ``json`` for machines."""
    level: Level = "info"
    """The least that is worth a line; ``warning`` leaves out the line of each turn."""
    content: bool = False
    """Whether the line of a turn holds what the caller and the model said."""


class OpenTelemetry(Part):
    """Where a span for each turn and for its stages goes; wants ``turnkeeper[traces]``."""

    endpoint: Annotated[str, AfterValidator(advising(address))] = ""
    """An OTLP address over HTTP, such as ``http://127.0.0.1:4318/v1/traces``; empty sends none."""


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
    """How long a connection may take to stand; in seconds once loaded."""
    first_token: Duration = 5.0
    """How long the model may take to say anything, each time it is asked; in seconds once loaded."""
    first_content: Duration | None = None
    """How long it may take to say more than reasoning, which is held back until then; off unless set."""
    total: Duration = 60.0
    """How long a whole answer may take, with all tries; in seconds once loaded."""
    retries: Annotated[Whole, Field(ge=0, le=10)] = 1
    """How often it is asked again in a turn when it fails before it has said anything."""
    max_connections: Annotated[Whole, Field(ge=1)] = 1000
    """How many requests may be under way at once."""
    headers: Frozen[SentHeader, SentValue] = Field(default_factory=lambda: MappingProxyType({}))
    """Sent with every request to this upstream."""
    forward_headers: tuple[ForwardedHeader, ...] = ()
    """The client's headers that go on, in lower case once loaded."""
    forward_key: bool = False
    """Whether the client's own bearer key goes on, in place of ``api_key``."""


Tool = Literal["memory_store", "memory_recall", "memory_forget"]


class Identity(Part):
    """Where a pipeline finds out whose turn it is; the first place that says something counts."""

    session: tuple[Place, ...] | None = None
    """Where the session's name stands; left out, the usual places of each dialect."""
    user: tuple[Place, ...] | None = None
    """Where the user's name stands; left out, the usual places of each dialect."""
    user_hmac: Annotated[SecretStr, AfterValidator(advising(signing_secret))] = SecretStr("")
    """Demands ``X-User-Hmac`` with each user's id: its HMAC-SHA256 in hexadecimal under this secret.

    ``user`` left out, the id is then read from ``X-User-Id`` alone.
    """
    default_session: str = ""
    """The session of a caller who names none; empty means no session."""


class Pipeline(Part):
    """What happens to a request on its way to the model."""

    upstreams: Annotated[tuple[UpstreamName, ...], AfterValidator(advising(at_least_one))] = Field(
        json_schema_extra={"minItems": 1}
    )
    """Names of upstreams; each further one is asked when those before it fail."""
    model: str = ""
    """The model's name; empty takes the upstream's, else the request's."""
    first_token: Duration | None = None
    """How long all upstreams together may take to say anything; left out, the sum of what each may take."""
    hedge: Duration | None = None
    """When the first delta is so late, the next upstream is asked as well; off unless set."""
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
    """How often the model is asked again in one answer, after its calls have been carried out."""
    answer: tuple[AnswerStep, ...] = ()
    """The filters between the model's answer and the client, in the order in which they run."""
    tests: tuple[Case, ...] = ()
    """What must become of some requests; ``turnkeeper test`` tries it, and serving does not look at it."""


class Window(Part):
    """How much of a session is held ready, and for how long."""

    max_messages: Annotated[Whole, Field(ge=2, le=1000)] = 60
    """A session with more messages than this is cut down, by whole turns."""
    keep_messages: Annotated[Whole, Field(ge=1, le=1000)] = 20
    """How many messages are left then, at the least."""
    max_tokens: Annotated[Whole, Field(ge=100)] | None = None
    """With summaries: one whose turns that no summary stands for have more tokens is cut down as well."""
    ttl: Duration = 1800.0
    """How long a session is kept after its last turn; in seconds once loaded."""


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
    """How long one answer may take; in seconds once loaded."""


class Archive(Part):
    """Where every turn is kept as it was heard, beyond its session."""

    url: Annotated[SecretStr, AfterValidator(advising(archive_address))] = SecretStr("")
    """``sqlite:PATH`` or ``postgresql://…``; empty: where sessions are, if that is such a place."""
    keep: Retention = "forever"
    """For how long: ``forever``, a duration such as ``90d``, or ``off``."""

    @property
    def seconds(self) -> float:
        """For how long turns are kept, in seconds; 0 is for ever."""
        return 0.0 if self.keep in {"forever", "off"} else quantity.seconds(self.keep)


class Memory(Part):
    """What is remembered of conversations; left out, nothing is."""

    sessions: Annotated[SecretStr, AfterValidator(advising(store_address))]
    """Where sessions are kept: ``sqlite:PATH``, ``postgresql://…``, ``redis://…``, or ``memory:``."""
    encryption: Annotated[tuple[SecretStr, ...], AfterValidator(advising(encryption_keys))] = ()
    """Keys of 32 bytes in URL-safe base64: the first encrypts, all decrypt; empty ones do not count."""
    deadline: Duration = 0.05
    """What a slow or dead memory may cost a call; in seconds once loaded."""
    window: Window = Window()
    """How much of a session is held ready."""
    summaries: Summaries | None = None
    """What becomes of turns that are held ready no longer; left out, they are kept and no model sees them."""
    work: bool = True
    """Whether ``serve`` does what can wait itself; ``false`` leaves it to ``turnkeeper worker``."""
    archive: Archive = Archive()
    """Where every turn is kept as it was heard, beyond its session."""
    reasoning: bool = False
    """Whether a model's reasoning is kept beside its answer, for upstreams that take it back."""

    @property
    def archive_url(self) -> str:
        """Where the archive is: empty where there is none."""
        if self.archive.keep == "off":
            return ""
        sessions = self.sessions.get_secret_value()
        return self.archive.url.get_secret_value() or (sessions if is_archive(sessions) else "")


class Limits(Part):
    """What each key may have, shared by all servers on one Redis; 0 is no limit."""

    requests_per_minute: Annotated[Whole, Field(ge=0)] = 0
    """How many turns in a minute, which begins with the first of them."""
    tokens_per_minute: Annotated[Whole, Field(ge=0)] = 0
    """How many tokens, of prompts and answers; a turn is admitted while any are left."""
    concurrent_streams: Annotated[Whole, Field(ge=0)] = 0
    """How many turns at once, in each process."""


class Traces(Part):
    """What is kept of turns to be looked at on the web page, in the process alone."""

    keep: Annotated[Whole, Field(ge=0, le=10_000)] = 200
    """How many turns; the oldest are let go, and sooner where they have more than 16 MB between them."""
    content: bool = True
    """Whether what was said is kept too; without it, only when, who and how long."""


class AgoraWebhook(Part):
    """Notices of Agora's engine: who joined and left, and what was said."""

    secret: SecretStr = SecretStr("")
    """What Agora signs its notices with; empty takes none."""
    tenant: str = ""
    """Whose calls they tell of, as named in ``keys``; empty is the only name there."""


class Webhooks(Part):
    """What engines tell by themselves."""

    agora: AgoraWebhook = AgoraWebhook()
    """``POST /webhooks/agora``."""


def _told_of(given: Webhooks, info: ValidationInfo) -> Webhooks:
    """Notices name no tenant: with several, the file does."""
    keys = info.data.get("keys") or Keys()
    tenants = {key.tenant for key in keys.entries} or {"default"}
    named = given.agora.tenant
    if given.agora.secret.get_secret_value() and (named or len(tenants) > 1) and named not in tenants:
        raise ValueError(f"agora.tenant: name one of those in 'keys': {', '.join(sorted(tenants))}")
    return given


class Settings(Part):
    """All that a configuration says."""

    listen: Listen = Listen()
    """Where callers are awaited."""
    keys: KnownKeys = Keys()
    """Who may call: ``name:secret`` or ``name:secret:chat``, by commas; empty admits this machine alone."""
    log: Log = Log()
    """What is written to stderr."""
    opentelemetry: OpenTelemetry = OpenTelemetry()
    """Where spans go."""
    filters: tuple[str, ...] = ()
    """Python files with filters of your own, from this file's folder on; each is named as its file."""
    memory: Memory | None = None
    """What is remembered of conversations; left out, nothing is."""
    tokens: Literal["estimate", "exact"] = "estimate"
    """How ``trim_history`` counts; ``exact`` takes ``turnkeeper[exact]``, 80 MB and a download at the start."""
    limits: Limits = Limits()
    """What each key may have."""
    traces: Traces = Traces()
    """What is kept of turns to be looked at on the web page."""
    webhooks: Annotated[Webhooks, AfterValidator(advising(_told_of))] = Webhooks()
    """What engines tell by themselves."""
    upstreams: Annotated[Frozen[Name, Upstream], AfterValidator(advising(at_least_one))] = Field(
        json_schema_extra={"minProperties": 1}
    )
    """The models that there are, by names of your choice."""
    pipelines: Frozen[Name, Pipeline] = Field(json_schema_extra={"required": ["default"]})
    """What happens to a request; ``default`` is asked where a path names no other."""
