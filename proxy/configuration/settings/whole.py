"""All parts of a configuration together."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from proxy.admission.keys import Keys
from proxy.configuration.advice import advising, elsewhere
from proxy.configuration.part import Part
from proxy.configuration.settings.limits import Limits
from proxy.configuration.settings.listen import Listen
from proxy.configuration.settings.log import Log
from proxy.configuration.settings.memory import Memory
from proxy.configuration.settings.opentelemetry import OpenTelemetry
from proxy.configuration.settings.pipeline import Pipeline
from proxy.configuration.settings.traces import Traces
from proxy.configuration.settings.upstream import Upstream
from proxy.configuration.settings.webhooks import Webhooks
from proxy.configuration.value import Frozen, KnownKeys, Name, at_least_one


def _told_of(given: Webhooks, info: ValidationInfo) -> Webhooks:
    """Notices name no tenant: with several, the file does."""
    keys = info.data.get("keys") or Keys()
    tenants = {key.tenant for key in keys.entries} or {"default"}
    named = given.agora.tenant
    if given.agora.secret.get_secret_value() and (named or len(tenants) > 1) and named not in tenants:
        message = f"name one of those in 'keys': {', '.join(sorted(tenants))}"
        raise elsewhere(("agora", "tenant"), message)
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
    """How ``trim_history`` counts; ``exact`` takes ``turnkeeper[exact]``, 80 MB and a download."""
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
