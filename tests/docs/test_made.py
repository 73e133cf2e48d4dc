"""Generated pages are up to date with the code."""

import re
from pathlib import Path

import pytest

from docs.make import MADE, ROOT

SHIPPED = sorted(
    path for folder in ("config", "examples", "turnkeeper") for path in (ROOT / folder).rglob("*.yaml")
)


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_made_file_is_fresh(path: Path):
    assert path.read_text() == MADE[path](), "run `make docs`"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_shipped_file_leads_an_editor_to_a_schema(path: Path):
    named = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", path.read_text().splitlines()[0])
    assert named
    assert (path.parent / named[1]).resolve() in MADE
