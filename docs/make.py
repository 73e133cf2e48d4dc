"""Writes the files that are made from the filters and the settings: ``make docs``."""

import json
from pathlib import Path

from docs.dashboard import dashboard
from proxy.configuration.load import shelf_of
from proxy.configuration.shelf import Shelf
from proxy.describe.editor import schema
from proxy.describe.figures import table
from proxy.describe.manual import manual
from proxy.describe.page import pages
from proxy.describe.reference import reference

ROOT = Path(__file__).parents[1]
OWN = ROOT / "examples/own_filter/own.yaml"


def made() -> dict[Path, str]:
    """Each file and what has to be in it, whatever packages are installed beside the project."""
    shipped = Shelf(installed=False)
    return {
        ROOT / "docs/filters.md": reference(pages(shipped)),
        ROOT / "docs/configuration.md": manual(_config("everything"), _config("agora")),
        ROOT / "docs/metrics.md": table(),
        ROOT / "docs/grafana.json": _json(dashboard()),
        ROOT / "config/schema.json": _json(schema(shipped)),
        OWN.with_name("schema.json"): _json(schema(shelf_of(OWN, {}, shipped))),
    }


def _config(name: str) -> str:
    return (ROOT / f"config/{name}.yaml").read_text(encoding="utf-8")


def _json(made: object) -> str:
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for path, text in made().items():
        path.write_text(text, encoding="utf-8")
