"""The configuration reference as Markdown: every key, as the settings describe it."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, get_args

import yaml
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from proxy.describe.pages import Option, options
from proxy.describe.schema import model_schema
from proxy.observe.metrics import GaugeValues, Metrics
from proxy.observe.observation import Attempts, Outcome, TurnReport
from proxy.settings.settings import Settings

_INTRODUCTION: Final = """# Configuration

<!-- Made by `make docs` from the settings themselves. -->

A configuration is one YAML file. `turnkeeper serve` reads it at its start, and again on SIGHUP. Every
key is listed here with its type and its default; a key that is not listed is a fault, and `turnkeeper
check` names what was probably meant. A dot leads into a key, `NAME` is a name of your choice, and `[]`
stands for each item of a list. A dash in the column of defaults means that there is none: the
description says what happens then.

Three things hold everywhere. `${NAME}` and `${NAME:-default}` are read from the environment, or from
the file that `NAME_FILE` names there, and `$$` is a dollar sign. A duration is written as `50ms`, `5s`,
`30m`, `2h` or `90d`, and a size as `512KB` or `16MB`. Secrets are never printed: not by `check`, not in
the log.

The steps under `request` and `answer` have a page of their own: [filters.md](filters.md). The examples
below are those of [config/everything.yaml](../config/everything.yaml), which has every key."""
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_TOO_LONG_TO_SHOW: Final = frozenset({"pipelines"})
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
    attempts=Attempts([("main", "timeout")], ["main"]),
    fell_back=True,
)


def settings_reference(everything: str, shipped: str) -> str:
    """The reference; the arguments are the YAML that shows every key, and the one served by default."""
    schema = model_schema(Settings)
    examples = _examples(everything)
    found = options(schema)
    lines = [_INTRODUCTION, "", *_index(found), "", *_environment(shipped)]
    for key in schema["properties"]:
        own = [option for option in found if re.match(rf"{key}\b", option.name)]
        lines += ["", f"## {key}", "", *([own[0].help, ""] if own[1:] else []), *_table(own[1:] or own)]
        if key in examples and key not in _TOO_LONG_TO_SHOW:
            lines += ["", "```yaml", examples[key], "```"]
    return "\n".join(lines) + "\n"


def _index(found: Sequence[Option]) -> Iterator[str]:
    yield from ["| key | what it sets |", "|---|---|"]
    for option in found:
        if "." not in option.name:
            yield f"| [`{option.name}`](#{option.name}) | {_cell(option.help)} |"


def _environment(shipped: str) -> Iterator[str]:
    yield from ["## The environment", ""]
    yield "`config/agora.yaml`, which is served where no other file is named, reads these variables:"
    yield from ["", "| variable | default | key |", "|---|---|---|"]
    for place, text in _texts(yaml.safe_load(shipped), ()):
        for name, default in _VARIABLE.findall(text):
            yield f"| `{name}` | {f'`{default}`' if default else 'empty'} | `{place}` |"


def _texts(value: Any, place: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Each text in a document, and where it stands."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, (*place, str(key)))
    elif isinstance(value, str):
        yield ".".join(place), value


def _table(found: Sequence[Option]) -> Iterator[str]:
    yield from ["| key | type | default | |", "|---|---|---|---|"]
    for option in found:
        name = option.name.replace(".*", ".NAME")
        yield f"| `{name}` | {_cell(option.kind)} | {_default(option)} | {_cell(option.help)} |"


def _default(option: Option) -> str:
    if option.default is None:
        return "*required*"
    return "—" if option.default == "null" else f"`{_cell(option.default)}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _examples(document: str) -> dict[str, str]:
    """A YAML file by its top-level keys, each with the comment that stands before it."""
    found: dict[str, str] = {}
    waiting: list[str] = []
    name = ""
    for line in document.splitlines():
        if begins := re.match(r"(\w+):", line):
            name = begins[1]
            found[name] = "\n".join([*waiting, line])
            waiting = []
        elif not line or line.startswith("#"):
            waiting = [*waiting, line] if line else []
        elif name:
            found[name] += "\n" + "\n".join([*waiting, line])
            waiting = []
    return found


def metrics_reference() -> str:
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
    metrics.add_gauges(
        lambda: GaugeValues(breakers={("main", "model"): "closed"}, background={"facts": False})
    )
    metrics.count_turn(_TURN)
    metrics.note_operation("read", "ok", 0.0)
    metrics.count_refusal("requests")
    told = text_string_to_metric_families(metrics.exposition().decode())
    return [each for each in told if each.name.startswith(_OWN) and not each.name.endswith(_WHEN)]
