"""What a configuration says, as one frozen value."""

from proxy.configuration.settings.facts import Facts
from proxy.configuration.settings.identity import Identity
from proxy.configuration.settings.limits import Limits
from proxy.configuration.settings.listen import Listen
from proxy.configuration.settings.log import Log
from proxy.configuration.settings.memory import Archive, Memory, Window
from proxy.configuration.settings.opentelemetry import OpenTelemetry
from proxy.configuration.settings.pipeline import Pipeline
from proxy.configuration.settings.recall import Embeddings, RecallAids, Rerank
from proxy.configuration.settings.redaction import Redaction
from proxy.configuration.settings.summaries import Summaries
from proxy.configuration.settings.traces import Traces
from proxy.configuration.settings.upstream import Upstream
from proxy.configuration.settings.webhooks import AgoraWebhook, Webhooks
from proxy.configuration.settings.whole import Settings

__all__ = [
    "AgoraWebhook",
    "Archive",
    "Embeddings",
    "Facts",
    "Identity",
    "Limits",
    "Listen",
    "Log",
    "Memory",
    "OpenTelemetry",
    "Pipeline",
    "RecallAids",
    "Redaction",
    "Rerank",
    "Settings",
    "Summaries",
    "Traces",
    "Upstream",
    "Webhooks",
    "Window",
]
