"""Writes the files that are made from the filters and the settings: ``make docs``."""

import json
from pathlib import Path

from proxy.configuration.load import shelf_of
from proxy.configuration.shelf import Shelf
from proxy.describe.editor import schema
from proxy.describe.page import pages
from proxy.describe.reference import reference

ROOT = Path(__file__).parents[1]
OWN = ROOT / "examples/own_filter/own.yaml"


def made() -> dict[Path, str]:
    """Each file and what has to be in it, whatever packages are installed beside the project."""
    shipped = Shelf(installed=False)
    return {
        ROOT / "docs/filters.md": reference(pages(shipped)),
        ROOT / "config/schema.json": _json(shipped),
        OWN.with_name("schema.json"): _json(shelf_of(OWN, {}, shipped)),
    }


def _json(shelf: Shelf) -> str:
    return json.dumps(schema(shelf), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for path, text in made().items():
        path.write_text(text, encoding="utf-8")
