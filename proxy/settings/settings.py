"""The settings of a configuration: the server's own, and all sections together."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, SecretStr, ValidationInfo

from filters.option_types import Whole
from proxy.admission.gate import Keys
from proxy.hostname import ADVICE, host_of, is_host_name
from proxy.memory.stores.drivers import is_counting_server
from proxy.observe.log import Format, Level
from proxy.settings.diagnostics import check_with, error_at
from proxy.settings.memory import Memory
from proxy.settings.pipeline import Pipeline, Upstream
from proxy.settings.values import (
    CallerKeys,
    Duration,
    Frozen,
    Name,
    SettingsModel,
    Size,
    at_least_one,
    listening_host,
)

if TYPE_CHECKING:
    from proxy.observe.spans import Spans


class Listen(SettingsModel):
    """Where the server listens."""

    host: Annotated[str, Field(min_length=1), check_with(listening_host)] = "127.0.0.1"
    """An address of this machine; any but a loopback address needs keys."""
    port: Annotated[Whole, Field(ge=0, le=65535)] = 8080
    """A port; 0 takes one that is free."""
    max_body: Size = 16_000_000
    """The largest request that is read."""
    max_messages: Annotated[Whole, Field(ge=1)] = 10_000
    """How many messages a request may have."""
    grace: Duration = 6.0
    """How long calls may last after SIGTERM; writing memory may take 3 s more."""
    drain: Duration = 2.0
    """How long new calls are taken after SIGTERM, within `grace`: a balancer must notice first."""


class Log(SettingsModel):
    """What is written to stderr: a line for each turn that has ended, and errors."""

    format: Format = "text"
    """``text`` to read, ``json`` for machines."""
    level: Level = "info"
    """The least that is worth a line; ``warning`` leaves out the line of each turn that did not fail."""
    content: bool = False
    """Whether the line of a turn holds the words of the caller and the model."""


def _spans() -> "type[Spans]":
    try:
        from proxy.observe.spans import Spans  # noqa: PLC0415 - needs the extra
    except ModuleNotFoundError as error:
        raise ValueError(f"this needs the module {error.name}; install turnkeeper[traces]") from error
    return Spans


def _otlp_address(endpoint: str) -> str:
    """Returns an OTLP address, or an empty one; raises ValueError otherwise. Opens no connection."""
    if endpoint:
        host = host_of(endpoint)
        if not host:
            raise ValueError("write an OTLP address over HTTP, such as http://127.0.0.1:4318/v1/traces")
        if not is_host_name(host):
            raise ValueError(ADVICE)
        _spans()
    return endpoint


class OpenTelemetry(SettingsModel):
    """Where a span for each turn and for its stages goes; needs ``turnkeeper[traces]``."""

    endpoint: Annotated[str, check_with(_otlp_address)] = ""
    """An OTLP address over HTTP, such as ``http://127.0.0.1:4318/v1/traces``; empty sends none."""

    def exporter(self) -> "Spans | None":
        """The exporter of spans; ``None`` where they are sent nowhere."""
        return _spans()(self.endpoint) if self.endpoint else None


def _counting_address(url: SecretStr) -> SecretStr:
    """Returns the address of a Redis, or an empty one; raises ValueError for others, which cannot count."""
    text = url.get_secret_value()
    if text and not is_counting_server(text):
        raise ValueError("write the address of a Redis, such as redis://host:6379/0; others do not count")
    return url


class Limits(SettingsModel):
    """What each key may have, shared by all servers on one Redis; 0 is no limit."""

    url: Annotated[SecretStr, check_with(_counting_address)] = SecretStr("")
    """The Redis that counts for all servers; empty is the one with the sessions, if they are on one."""
    requests_per_minute: Annotated[Whole, Field(ge=0)] = 0
    """How many requests in a minute, which begins with the first; what asks no model counts by its size."""
    tokens_per_minute: Annotated[Whole, Field(ge=0)] = 0
    """How many tokens, of prompts and answers; a turn is admitted while any are left."""
    concurrent_streams: Annotated[Whole, Field(ge=0)] = 0
    """How many answers at once; those of a server that dies count for 45 seconds more."""

    @property
    def has_any(self) -> bool:
        """Whether anything is limited."""
        return bool(self.requests_per_minute or self.tokens_per_minute or self.concurrent_streams)


class Traces(SettingsModel):
    """What is kept of turns for the web page: in the process, and on the Redis with the sessions."""

    keep: Annotated[Whole, Field(ge=0, le=10_000)] = 200
    """How many turns; the oldest are let go, and sooner where they have more than 16 MB between them.

    On a Redis, so many of each tenant, 500 at the most.
    """
    content: bool = True
    """Whether the words are kept too; without them, only times, session and user."""


class AgoraWebhook(SettingsModel):
    """Webhook events of Agora's engine: participants that join and leave, and transcripts."""

    secret: SecretStr = SecretStr("")
    """The secret with which Agora signs its events; empty accepts none."""
    tenant: str = ""
    """The tenant of their calls, as named in ``keys``; empty is the only name there."""


class Webhooks(SettingsModel):
    """Events that engines send by themselves."""

    agora: AgoraWebhook = AgoraWebhook()
    """``POST /webhooks/agora``."""


def _check_tenant(webhooks: Webhooks, info: ValidationInfo) -> Webhooks:
    """Returns the webhooks; raises an error if there are several tenants and none is named for the events.

    The events themselves name no tenant.
    """
    keys = info.data.get("keys") or Keys()
    tenants = {key.tenant for key in keys.entries} or {"default"}
    agora = webhooks.agora
    is_ambiguous = (agora.tenant or len(tenants) > 1) and agora.tenant not in tenants
    if agora.secret.get_secret_value() and is_ambiguous:
        message = f"name one of those in 'keys': {', '.join(sorted(tenants))}"
        raise error_at(("agora", "tenant"), message)
    return webhooks


class Settings(SettingsModel):
    """All that a configuration says."""

    listen: Listen = Listen()
    """Where the server listens."""
    keys: CallerKeys = Keys()
    """The callers' keys: ``name:secret`` or ``name:secret:chat``, by commas; empty: only this machine."""
    log: Log = Log()
    """What is written to stderr."""
    opentelemetry: OpenTelemetry = OpenTelemetry()
    """Where spans go."""
    filters: tuple[str, ...] = ()
    """Python files with filters of your own, from this file's folder on; each is named as its file."""
    memory: Memory | None = None
    """What is remembered of conversations; left out, nothing is."""
    tokens: Literal["estimate", "exact"] = "estimate"
    """How ``trim_history`` counts; ``exact`` takes ``turnkeeper[exact]``, 80 MB and a download."""
    limits: Limits = Limits()
    """What each key may have."""
    traces: Traces = Traces()
    """What is kept of turns to be looked at on the web page."""
    webhooks: Annotated[Webhooks, check_with(_check_tenant)] = Webhooks()
    """Events that engines send by themselves."""
    upstreams: Annotated[Frozen[Name, Upstream], check_with(at_least_one)] = Field(
        json_schema_extra={"minProperties": 1}
    )
    """The models that there are, by names of your choice."""
    pipelines: Frozen[Name, Pipeline] = Field(json_schema_extra={"required": ["default"]})
    """What happens to a request; ``default`` serves it where the path names no other."""


def counting_address(settings: Settings) -> str:
    """Returns the address of the Redis that counts limits for all servers.

    It is empty if there is none, and each process then counts alone.
    """
    memory = settings.memory
    sessions = memory.sessions.get_secret_value() if memory else ""
    return settings.limits.url.get_secret_value() or (sessions if is_counting_server(sessions) else "")


def unshared_limits(settings: Settings, processes: int = 1) -> str:
    """Returns a warning if several processes or servers would each count limits alone; empty otherwise."""
    memory = settings.memory
    has_servers = memory is not None and memory.sessions.get_secret_value().startswith("postgres")
    if not settings.limits.has_any or counting_address(settings) or not (has_servers or processes > 1):
        return ""
    counting = f"each of {processes} processes" if processes > 1 else "each server"
    return f"Without Redis {counting} counts 'limits' for itself; name one in limits.url (LIMITS_URL)"
