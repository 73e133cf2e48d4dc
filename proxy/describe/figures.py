"""The metrics as a table: what a server counts and measures, in Markdown."""

from collections.abc import Iterable, Iterator
from typing import Final, get_args

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from proxy.observe.metrics import GaugeValues, Metrics
from proxy.observe.observation import Attempts, Outcome, TurnReport

_OWN: Final = ("turnkeeper", "gen_ai")
_WHEN: Final = "_created"
_TITLE: Final = "# Metrics\n\n<!-- Made by `make docs` from the metrics themselves. -->"
_BEFORE: Final = """
`GET /metrics` answers in Prometheus' text format. Names that begin with `gen_ai_` are those of
OpenTelemetry's conventions for generative AI. A counter is exposed with `_total` behind its name; a
histogram as `_bucket`, `_count` and `_sum`, a summary as the last two. Times are in seconds. No label
is the caller's to choose: of models, the first 50 are named and the rest are `other`."""
_AFTER: Final = """
`outcome` is {outcomes}. `status` is the status that the client got, and `error_type` the code of an
answer that failed, else empty. `stage` is `recall`, `filters` or `upstream`; `overhead` is the sum of
the first two, the share of a turn that is ours. `name` is what `X-Turnkeeper-Degraded` said and `limit`
is `requests`, `tokens` or `streams`. Beside these stand `…_created`, when each began to count, and
`process_…`: memory, CPU and open files."""


def table() -> str:
    """All metrics of ours with their types and labels."""
    *most, last = (f"`{outcome}`" for outcome in get_args(Outcome))
    outcomes = f"{', '.join(most)} or {last}"
    rows = _rows(_collected())
    return "\n".join([_TITLE, _BEFORE, "", *rows, _AFTER.format(outcomes=outcomes), ""])


def _rows(metrics: Iterable[Metric]) -> Iterator[str]:
    yield from ["| metric | type | labels | what it tells |", "|---|---|---|---|"]
    for metric in metrics:
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        labels = dict.fromkeys(label for sample in metric.samples for label in sample.labels)
        named = ", ".join(f"`{label}`" for label in labels if label not in {"le", "version"})
        yield f"| `{name}` | {metric.type} | {named} | {metric.documentation} |"


def _collected() -> list[Metric]:
    """What is there once everything has happened: a label is known by a sample alone."""
    metrics = Metrics()
    metrics.gauge(lambda: GaugeValues(breakers={("main", "model"): "closed"}, background={"facts": False}))
    metrics.turn(_TURN)
    metrics.memory("read", "ok", 0.0)
    metrics.refused("requests")
    told = text_string_to_metric_families(metrics.exposition().decode())
    return [each for each in told if each.name.startswith(_OWN) and not each.name.endswith(_WHEN)]


_TURN: Final = TurnReport(
    id="1",
    request="req_1",
    at=0.0,
    tenant="default",
    pipeline="default",
    session=None,
    user=None,
    turn=None,
    upstream="main",
    model="model",
    outcome="done",
    status=200,
    code=None,
    lead=0.0,
    stages=(("recall", 0.0),),
    filters=(("filters.recall", 0.0),),
    first_token=0.0,
    duration=0.0,
    input_tokens=1,
    output_tokens=1,
    degraded=("memory",),
    ignored=("timestamp",),
    tries=Attempts([("main", "timeout")], ["main"]),
    fell_back=True,
)
