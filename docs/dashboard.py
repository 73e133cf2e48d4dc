"""The dashboard for Grafana, panel by panel."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
_HERE: Final = 'instance=~"$instance"'
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3


class Panel(msgspec.Struct, frozen=True):
    """One plot: a title, a unit of Grafana's, and expressions of PromQL with their legends."""

    title: str
    unit: str
    lines: dict[str, str]
    told: str = ""


def _rate(metric: str, *by: str, only: str = "") -> str:
    return f"sum by ({', '.join(by)}) (rate({metric}{{{_chosen(only)}}}[$__rate_interval]))"


def _quantile(share: float, metric: str, *by: str) -> str:
    return f"histogram_quantile({share}, {_rate(f'{metric}_bucket', *by, 'le')})"


def _quantiles(metric: str) -> dict[str, str]:
    return {f"p{round(share * 100)}": _quantile(share, metric) for share in (0.5, 0.9, 0.99)}


def _now(metric: str, *by: str, only: str = "") -> str:
    return f"sum by ({', '.join(by)}) ({metric}{{{_chosen(only)}}})"


def _chosen(only: str) -> str:
    return ", ".join(filter(None, [_HERE, only]))


_FIRST: Final = "gen_ai_server_time_to_first_token_seconds"
_PANELS: Final = (
    Panel("Turns by how they ended", "reqps", {"{{outcome}}": _rate("turnkeeper_turns_total", "outcome")}),
    Panel("Time to the first token", "s", _quantiles(_FIRST), "From a turn's arrival, model included."),
    Panel(
        "What Turnkeeper adds",
        "s",
        _quantiles("turnkeeper_overhead_seconds"),
        "Memory and request filters, before the model is asked.",
    ),
    Panel("Turns being answered", "short", {"{{instance}}": _now("turnkeeper_turns_in_flight", "instance")}),
    Panel(
        "Failed answers",
        "reqps",
        {
            "{{status}}": _rate("turnkeeper_turns_total", "status", only='outcome="failed"'),
        },
        "By the status that the client got; 200 broke off later.",
    ),
    Panel(
        "Turns that went without something",
        "reqps",
        {"{{name}}": _rate("turnkeeper_degraded_turns_total", "name")},
        "What X-Turnkeeper-Degraded named.",
    ),
    Panel(
        "Upstreams that did not begin to answer",
        "reqps",
        {"{{upstream}} {{code}}": _rate("turnkeeper_upstream_failures_total", "upstream", "code")},
    ),
    Panel(
        "Second tries, and turns that another upstream answered",
        "reqps",
        {
            "again {{upstream}}": _rate("turnkeeper_retries_total", "upstream"),
            "instead {{upstream}}": _rate("turnkeeper_fallbacks_total", "upstream"),
        },
    ),
    Panel(
        "Upstreams passed over",
        "short",
        {
            "{{upstream}} {{model}}": _now(
                "turnkeeper_breaker_state", "upstream", "model", only='state!="closed"'
            )
        },
        "In how many processes a breaker is not closed.",
    ),
    Panel(
        "First token by model, p90",
        "s",
        {
            "{{gen_ai_request_model}} at {{upstream}}": _quantile(
                0.9, _FIRST, "gen_ai_request_model", "upstream"
            )
        },
    ),
    Panel(
        "Whole answers by model, p90",
        "s",
        {
            "{{gen_ai_request_model}}": _quantile(
                0.9, "gen_ai_client_operation_duration_seconds", "gen_ai_request_model"
            )
        },
    ),
    Panel(
        "Stages until the answer began, p90",
        "s",
        {"{{stage}}": _quantile(0.9, "turnkeeper_stage_seconds", "stage")},
    ),
    Panel(
        "Tokens",
        "short",
        {"{{gen_ai_token_type}}": _rate("gen_ai_client_token_usage_sum", "gen_ai_token_type")},
        "A second, as upstreams count them.",
    ),
    Panel(
        "Request filters, mean",
        "s",
        {
            "{{filter}}": f"{_rate('turnkeeper_filter_seconds_sum', 'filter')}"
            f" / {_rate('turnkeeper_filter_seconds_count', 'filter')}"
        },
    ),
    Panel(
        "Requests over a limit", "reqps", {"{{limit}}": _rate("turnkeeper_refused_requests_total", "limit")}
    ),
    Panel(
        "Memory, p99",
        "s",
        {"{{operation}}": _quantile(0.99, "turnkeeper_memory_operation_seconds", "operation")},
    ),
    Panel(
        "Turns yet to be written, and lost",
        "short",
        {
            "waiting": _now("turnkeeper_memory_queue_turns"),
            "lost": _now("turnkeeper_lost_turns_total"),
            "memory fails": _now("turnkeeper_memory_failing"),
            "{{work}} fail": _now("turnkeeper_background_failing", "work"),
        },
    ),
    Panel(
        "Memory of the process", "bytes", {"{{instance}}": _now("process_resident_memory_bytes", "instance")}
    ),
)


def dashboard() -> dict[str, Any]:
    """What Grafana imports: it asks for the Prometheus to read from, and offers a choice of servers."""
    return {
        "title": "Turnkeeper",
        "uid": "turnkeeper",
        "tags": ["turnkeeper"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [*_variables()]},
        "panels": [_drawn(number, panel) for number, panel in enumerate(_PANELS)],
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    yield {
        "name": "instance",
        "label": "Server",
        "type": "query",
        "datasource": _SOURCE,
        "query": "label_values(turnkeeper_info, instance)",
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }


def _drawn(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, _COLUMNS)
    targets = [
        {"refId": chr(ord("A") + i), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
        for i, (legend, expression) in enumerate(panel.lines.items())
    ]
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.told,
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }
