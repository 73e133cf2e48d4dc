"""Writes the files that are made from the filters and the settings: ``make docs``."""

import json
from pathlib import Path

from proxy.describe.manual import metrics_reference, settings_reference
from proxy.describe.pages import pages
from proxy.describe.reference import filters_reference
from proxy.describe.schema import settings_schema
from proxy.settings.filter_registry import FilterRegistry
from proxy.settings.load import load_registry

ROOT = Path(__file__).parents[1]
OWN = ROOT / "examples/own_filter/own.yaml"


def made() -> dict[Path, str]:
    """Each file and what has to be in it, whatever packages are installed beside the project."""
    shipped = FilterRegistry(installed=False)
    return {
        ROOT / "docs/filters.md": filters_reference(pages(shipped)),
        ROOT / "docs/configuration.md": settings_reference(_config("everything"), _config("agora")),
        ROOT / "docs/metrics.md": metrics_reference(),
        ROOT / "config/schema.json": _json(settings_schema(shipped)),
        OWN.with_name("schema.json"): _json(settings_schema(load_registry(OWN, {}, shipped))),
    }


def _config(name: str) -> str:
    return (ROOT / f"config/{name}.yaml").read_text(encoding="utf-8")


def _json(made: object) -> str:
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for path, text in made().items():
        path.write_text(text, encoding="utf-8")
