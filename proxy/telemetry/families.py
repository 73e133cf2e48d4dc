"""The metrics there are: names, labels and buckets."""

from collections.abc import Mapping
from typing import Final, Self

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram, Info, Summary

from proxy.version import VERSION

_SHORT = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_LONG = (0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
_TOKENS = (16, 64, 256, 1024, 4096, 16384, 65536, 262144)
_CALL = ("gen_ai_operation_name", "gen_ai_request_model")


class _Kind(msgspec.Struct, frozen=True):
    """One metric: its name, what it says, its labels, and a histogram's buckets."""

    name: str
    what: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_COUNTERS: Final[Mapping[str, _Kind]] = {
    "turns": _Kind("turnkeeper_turns", "Turns by how they ended", ("pipeline", "outcome", "status")),
    "degraded": _Kind("turnkeeper_degraded_turns", "Turns that went without something", ("name",)),
    "ignored": _Kind("turnkeeper_ignored_fields", "Extension fields and ids that could not be used"),
    "failed": _Kind(
        "turnkeeper_upstream_failures", "Upstreams that did not begin to answer", ("upstream", "code")
    ),
    "again": _Kind("turnkeeper_retries", "Upstreams asked once more in a turn", ("upstream",)),
    "fallbacks": _Kind(
        "turnkeeper_fallbacks",
        "Turns that another than the first upstream answered",
        ("pipeline", "upstream"),
    ),
    "refused": _Kind("turnkeeper_refused_requests", "Requests over a rate limit", ("limit",)),
}
_HISTOGRAMS: Final[Mapping[str, _Kind]] = {
    "overhead": _Kind(
        "turnkeeper_overhead_seconds", "What turns took before the model was asked", ("pipeline",), _SHORT
    ),
    "stage": _Kind("turnkeeper_stage_seconds", "Stages until the answer began", ("pipeline", "stage"), _LONG),
    "memory": _Kind(
        "turnkeeper_memory_operation_seconds", "Reads and writes", ("operation", "outcome"), _SHORT
    ),
    "first_token": _Kind(
        "gen_ai_server_time_to_first_token_seconds",
        "From a turn's arrival until its first token went out",
        (*_CALL, "upstream"),
        _LONG,
    ),
    "operation": _Kind(
        "gen_ai_client_operation_duration_seconds",
        "From asking the model until the turn had ended",
        (*_CALL, "upstream", "error_type"),
        _LONG,
    ),
    "tokens": _Kind(
        "gen_ai_client_token_usage",
        "Tokens, as upstreams count them",
        (*_CALL, "gen_ai_token_type"),
        _TOKENS,
    ),
}


class Families(msgspec.Struct, frozen=True, kw_only=True):
    """One registry's metrics, those of generative AI under OpenTelemetry's names."""

    turns: Counter
    degraded: Counter
    ignored: Counter
    refused: Counter
    failed: Counter
    again: Counter
    fallbacks: Counter
    overhead: Histogram
    stage: Histogram
    filter: Summary
    memory: Histogram
    first_token: Histogram
    operation: Histogram
    tokens: Histogram

    @classmethod
    def declare(cls, registry: CollectorRegistry) -> Self:
        """All of them, in an empty registry."""
        Info("turnkeeper", "This program", registry=registry).info({"version": VERSION})
        counters = {
            name: Counter(kind.name, kind.what, kind.labels, registry=registry)
            for name, kind in _COUNTERS.items()
        }
        histograms = {
            name: Histogram(kind.name, kind.what, kind.labels, buckets=kind.buckets, registry=registry)
            for name, kind in _HISTOGRAMS.items()
        }
        filters = Summary("turnkeeper_filter_seconds", "Request filters", ("filter",), registry=registry)
        return cls(**counters, **histograms, filter=filters)  # type: ignore[arg-type]
