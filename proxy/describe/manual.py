"""The configuration reference as Markdown: every key, as the settings describe it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import yaml

from proxy.configuration.settings import Settings
from proxy.describe.option import Option, options
from proxy.describe.schema import of_model

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


def manual(everything: str, shipped: str) -> str:
    """The reference; the arguments are the YAML that shows every key, and the one served by default."""
    schema = of_model(Settings)
    examples = _parts(everything)
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


def _parts(document: str) -> dict[str, str]:
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
