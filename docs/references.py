"""The references of the filters, the configuration and the metrics as Markdown."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, get_args

import yaml
from prometheus_client.parser import text_string_to_metric_families

from proxy.describe.pages import TITLES, FilterPage, Option, filter_reference, options, table_cell
from proxy.describe.schema import model_schema
from proxy.observe.metrics import GaugeValues, Metrics
from proxy.observe.observation import Attempts, Outcome, TurnReport
from proxy.settings.settings import Settings

_OPENING: Final = "After this page you know what each filter does, with its options and examples."
_PLACES: Final = {
    "request": "They stand under `request:` of a pipeline and change requests on their way to the model.",
    "answer": "They stand under `answer:` of a pipeline and change answers on their way to the client.",
}
_INTRODUCTION: Final = """# Configuration

<!-- Made by `make docs` from the settings themselves. -->

After this page you can set any key of a configuration.

A configuration is one YAML file. `turnkeeper serve` reads it at its start, and again on SIGHUP. This
page lists every key with its type and its default. Any other key is an error, for which `turnkeeper
check` suggests the right name. A dot separates a key from the keys within it, `NAME` is a name of your
choice, and `[]` stands for each item of a list. A dash in the column of defaults means that there is
no default; the description then says what happens without the key.

Three rules hold everywhere. `${NAME}` and `${NAME:-default}` are replaced by variables of the
environment, or by the content of the file that `NAME_FILE` names; write `$$` for a dollar sign. A
duration is written as `50ms`, `5s`, `30m`, `2h` or `90d`, and a size as `512KB` or `16MB`. Secrets are
never printed, neither by `check` nor in the log.

The steps under `request` and `answer` have a page of their own: [filters.md](filters.md). The examples
below are from [config/everything.yaml](../config/everything.yaml), which has every key."""
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_TOO_LONG_TO_SHOW: Final = frozenset({"pipelines"})


def filters_reference(pages: Sequence[FilterPage]) -> str:
    """All pages as one document, with an index."""
    lines = ["# Filters", "", "<!-- Made by `make docs` from the filters themselves. -->", "", _OPENING, ""]
    anchors: dict[FilterPage, str] = {}
    for page in pages:
        # The second heading of a name gets a number.
        anchors[page] = f"{page.name}-1" if page.name in anchors.values() else page.name
    for side, title in TITLES.items():
        rows = [
            f"| [`{page.name}`](#{anchors[page]}) | {table_cell(page.summary)} |"
            for page in pages
            if page.side == side
        ]
        if rows:
            header = ["| filter | what it does |", "|---|---|"]
            lines += [f"**{title}.** {_PLACES[side]}", "", *header, *rows, ""]
    for page in pages:
        lines.append(filter_reference(page, "##"))
    return "\n".join(lines)


def settings_reference(everything: str, shipped: str) -> str:
    """The reference of the configuration.

    ``everything`` is a configuration with every key, ``shipped`` the one that is served by default.
    """
    schema = model_schema(Settings)
    every, examples = options(schema), _sections(everything)
    lines = [_INTRODUCTION, "", "| key | what it sets |", "|---|---|"]
    sections = [option for option in every if "." not in option.name]
    lines += [f"| [`{option.name}`](#{option.name}) | {table_cell(option.help)} |" for option in sections]
    lines += ["", "## The environment", ""]
    lines += ["`config/agora.yaml`, which is served where no other file is named, reads these variables:"]
    lines += ["", "| variable | default | key |", "|---|---|---|"]
    for path, text in _texts(yaml.safe_load(shipped), ()):
        for name, default in _VARIABLE.findall(text):
            lines.append(f"| `{name}` | {f'`{default}`' if default else 'empty'} | `{path}` |")
    for key in schema["properties"]:
        section, *inner = (option for option in every if re.match(rf"{key}\b", option.name))
        lines += ["", f"## {key}", "", *([section.help, ""] if inner else []), *_table(inner or [section])]
        if key in examples and key not in _TOO_LONG_TO_SHOW:
            lines += ["", "```yaml", examples[key], "```"]
    return "\n".join(lines) + "\n"


def _texts(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The texts in a document with their paths."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, (*path, str(key)))
    elif isinstance(value, str):
        yield ".".join(path), value


def _table(rows: Sequence[Option]) -> Iterator[str]:
    yield from ["| key | type | default | |", "|---|---|---|---|"]
    for option in rows:
        name, default = option.name.replace(".*", ".NAME"), option.default
        if default is None:
            default = "*required*"
        else:
            default = "—" if default == "null" else f"`{table_cell(default)}`"
        yield f"| `{name}` | {table_cell(option.kind)} | {default} | {table_cell(option.help)} |"


def _sections(document: str) -> dict[str, str]:
    """A YAML file by its top-level keys, each with the comment before it."""
    sections: dict[str, str] = {}
    pending: list[str] = []
    name = ""
    for line in document.splitlines():
        if match := re.match(r"(\w+):", line):
            name = match[1]
            sections[name] = "\n".join([*pending, line])
            pending = []
        elif not line or line.startswith("#"):
            pending = [*pending, line] if line else []
        elif name:
            sections[name] += "\n" + "\n".join([*pending, line])
            pending = []
    return sections


# --- metrics

_METRICS_TITLE: Final = "# Metrics\n\n<!-- Made by `make docs` from the metrics themselves. -->"
_METRICS_INTRODUCTION: Final = """
After this page you can read `/metrics` and build dashboards and alerts on it.

`GET /metrics` answers in Prometheus' text format. Names that begin with `gen_ai_` are those of
OpenTelemetry's conventions for generative AI. A counter is exposed with `_total` behind its name, a
histogram as `_bucket`, `_count` and `_sum`, and a summary as `_count` and `_sum`. Times are in seconds.
Clients cannot create any number of labels: the first 50 models are named, all others are `other`."""
_METRICS_LABELS: Final = """
`outcome` is {outcomes}.
`status` is the HTTP status of the answer, and `error_type` the error code of an answer that failed, else
empty. `stage` is `recall`, `filters` or `upstream`; `overhead` is the sum of the first two, the part of
a turn that Turnkeeper itself takes. `name` is a value of `X-Turnkeeper-Degraded`, and `limit` is
`requests`, `tokens` or `streams`. There are also `…_created`, the time from which each metric counts,
and `process_…`: memory, CPU and open files."""
_TURN: Final = TurnReport(
    pipeline="default",
    upstream="main",
    model="model",
    outcome="done",
    status=200,
    stages=(("recall", 0.0),),
    filters=(("filters.recall", 0.0),),
    first_token=0.0,
    input_tokens=1,
    output_tokens=1,
    degraded=["memory"],
    ignored=("timestamp",),
    attempts=Attempts([("main", "timeout")], ["main"]),
    fell_back=True,
)


def metrics_reference() -> str:
    """The metrics with their types and labels."""
    metrics = Metrics()
    # A label shows in a sample alone, so everything has to happen once.
    metrics.add_gauges(
        lambda: GaugeValues(
            breakers={("main", "model"): "closed"}, background={"facts": False}, clock_skew=0.0
        )
    )
    metrics.count_turn(_TURN)
    metrics.count_operation("read", "ok", 0.0)
    metrics.count_refusal("requests")
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for metric in text_string_to_metric_families(metrics.exposition().decode()):
        if not metric.name.startswith(("turnkeeper", "gen_ai")) or metric.name.endswith("_created"):
            continue
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        labels = dict.fromkeys(label for sample in metric.samples for label in sample.labels)
        names = ", ".join(f"`{label}`" for label in labels if label not in {"le", "version"})
        rows.append(f"| `{name}` | {metric.type} | {names} | {metric.documentation} |")
    *most, last = (f"`{outcome}`" for outcome in get_args(Outcome))
    labels_text = _METRICS_LABELS.format(outcomes=f"{', '.join(most)} or {last}")
    return "\n".join([_METRICS_TITLE, _METRICS_INTRODUCTION, "", *rows, labels_text, ""])
