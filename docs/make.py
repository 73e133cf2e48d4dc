"""Writes the files that are made from the filters and the settings: ``make docs``."""

import json
from collections.abc import Callable
from pathlib import Path

from docs.references import filters_reference, metrics_reference, settings_reference
from proxy.describe.pages import pages
from proxy.describe.schema import settings_schema
from proxy.settings.filter_registry import FilterRegistry
from proxy.settings.load import load_registry

ROOT = Path(__file__).parents[1]
OWN = ROOT / "examples/own_filter/own.yaml"


def _config(name: str) -> str:
    return (ROOT / f"config/{name}.yaml").read_text(encoding="utf-8")


def _json(made: object) -> str:
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


# Whatever packages are installed beside the project.
_SHIPPED = FilterRegistry(installed=False)
MADE: dict[Path, Callable[[], str]] = {
    ROOT / "docs/filters.md": lambda: filters_reference(pages(_SHIPPED)),
    ROOT / "docs/configuration.md": lambda: settings_reference(_config("everything"), _config("agora")),
    ROOT / "docs/metrics.md": metrics_reference,
    ROOT / "config/schema.json": lambda: _json(settings_schema(_SHIPPED)),
    OWN.with_name("schema.json"): lambda: _json(settings_schema(load_registry(OWN, {}))),
}
"""Each file, and what makes what has to be in it."""


if __name__ == "__main__":
    for path, make in MADE.items():
        path.write_text(make(), encoding="utf-8")
