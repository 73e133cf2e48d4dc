"""The settings of a configuration: the server's own, and all sections together."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, SecretStr, ValidationInfo

from filters.option_types import Whole
from proxy.admission.gate import Keys
from proxy.hostname import ADVICE, host_of, is_host_name
from proxy.memory.stores.drivers import is_counting_server
from proxy.observe.log import Format, Level
from proxy.settings.diagnostics import check_with, error_at
from proxy.settings.memory import MemorySettings
from proxy.settings.pipeline import PipelineSettings, UpstreamSettings
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


class ListenSettings(SettingsModel):
    """Where the server listens."""

    host: Annotated[str, Field(min_length=1), check_with(listening_host)] = "127.0.0.1"
    """The address to listen on. Any address except a loopback address needs `keys`."""
    port: Annotated[Whole, Field(ge=0, le=65535)] = 8080
    """The port to listen on; 0 picks a free one."""
    max_body: Size = 16_000_000
    """The largest request body that is accepted."""
    max_messages: Annotated[Whole, Field(ge=1)] = 10_000
    """The most messages that a request may have."""
    grace: Duration = 6.0
    """How long requests under way may still run after SIGTERM. Writing memory may take 3 s more."""
    drain: Duration = 2.0
    """How long new requests are still accepted after SIGTERM, so that a balancer can notice first.

    It is a part of `grace`.
    """


class LogSettings(SettingsModel):
    """The log on stderr: one line for each finished turn, and errors."""

    format: Format = "text"
    """``text`` for reading, ``json`` for machines."""
    level: Level = "info"
    """The lowest level that is logged; ``warning`` omits the lines of turns that succeeded."""
    content: bool = False
    """Whether the line of a turn includes what the caller and the model said."""


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


class OpenTelemetrySettings(SettingsModel):
    """Tracing: a span for each turn and each of its stages; needs ``turnkeeper[traces]``."""

    endpoint: Annotated[str, check_with(_otlp_address)] = ""
    """The OTLP address over HTTP, such as ``http://127.0.0.1:4318/v1/traces``; empty: no spans are sent."""

    def exporter(self) -> "Spans | None":
        """The exporter of spans; ``None`` where they are sent nowhere."""
        return _spans()(self.endpoint) if self.endpoint else None


def _counting_address(url: SecretStr) -> SecretStr:
    """Returns the address of a Redis, or an empty one; raises ValueError for others, which cannot count."""
    text = url.get_secret_value()
    if text and not is_counting_server(text):
        raise ValueError(
            "write the address of a Redis, such as redis://host:6379/0; other stores cannot count limits"
        )
    return url


class LimitSettings(SettingsModel):
    """Limits of each key, counted together by all servers on one Redis; 0 is no limit."""

    url: Annotated[SecretStr, check_with(_counting_address)] = SecretStr("")
    """The Redis that counts for all servers; empty: the Redis that stores sessions, if one does."""
    requests_per_minute: Annotated[Whole, Field(ge=0)] = 0
    """Requests in a minute, which starts with the first one.

    A request that asks no model, such as an import into memory or an export, counts once for each 64 KB of
    its body and its answer.
    """
    tokens_per_minute: Annotated[Whole, Field(ge=0)] = 0
    """Tokens of prompts and answers in a minute; a turn is admitted while any are left."""
    concurrent_streams: Annotated[Whole, Field(ge=0)] = 0
    """Answers under way at once; those of a crashed server count for 45 seconds more."""

    @property
    def has_any(self) -> bool:
        """Whether anything is limited."""
        return bool(self.requests_per_minute or self.tokens_per_minute or self.concurrent_streams)


class TraceSettings(SettingsModel):
    """The newest turns, which the web page shows: in the process, and on the Redis that stores sessions."""

    keep: Annotated[Whole, Field(ge=0, le=10_000)] = 200
    """How many turns the page can show. The oldest are dropped first, and sooner if all take over 16 MB.

    On a Redis the number holds for each tenant, up to 500.
    """
    content: bool = True
    """Whether the words are stored, too; ``false`` keeps only times, session and user."""


class AgoraWebhookSettings(SettingsModel):
    """Webhook events of Agora: participants that join and leave, and transcripts."""

    secret: SecretStr = SecretStr("")
    """The secret with which Agora signs its events; empty: no event is accepted."""
    tenant: str = ""
    """The tenant that the calls belong to, as named in ``keys``; empty: the only tenant."""


class WebhookSettings(SettingsModel):
    """Events that voice platforms send on their own."""

    agora: AgoraWebhookSettings = AgoraWebhookSettings()
    """Events of Agora, at ``POST /webhooks/agora``."""


def _check_tenant(webhooks: WebhookSettings, info: ValidationInfo) -> WebhookSettings:
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
    """The whole configuration."""

    listen: ListenSettings = ListenSettings()
    """Where the server listens."""
    keys: CallerKeys = Keys()
    """API keys of your clients: ``name:secret`` or ``name:secret:chat``, separated by commas.

    ``:chat`` allows chat requests alone. Empty: only this machine may connect.
    """
    log: LogSettings = LogSettings()
    """The log on stderr."""
    opentelemetry: OpenTelemetrySettings = OpenTelemetrySettings()
    """Where tracing spans are sent."""
    filters: tuple[str, ...] = ()
    """Python files with filters of your own, relative to this file; a filter has the name of its file."""
    memory: MemorySettings | None = None
    """What is remembered of conversations; left out: nothing."""
    tokens: Literal["estimate", "exact"] = "estimate"
    """How ``trim_history`` counts tokens; ``exact`` needs ``turnkeeper[exact]`` (80 MB) and a download."""
    limits: LimitSettings = LimitSettings()
    """Limits of each key."""
    traces: TraceSettings = TraceSettings()
    """The newest turns, which the web page shows."""
    webhooks: Annotated[WebhookSettings, check_with(_check_tenant)] = WebhookSettings()
    """Events that voice platforms send on their own."""
    upstreams: Annotated[Frozen[Name, UpstreamSettings], check_with(at_least_one)] = Field(
        json_schema_extra={"minProperties": 1}
    )
    """The models to send requests to, by names of your choice."""
    pipelines: Frozen[Name, PipelineSettings] = Field(json_schema_extra={"required": ["default"]})
    """What happens to a request, by name; ``default`` serves paths that name no pipeline."""


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
