"""The map in docs/design.md leads to what is there, and names every room."""

import re

from tests.documentation import ROOT

PAGE = (ROOT / "docs/design.md").read_text()


def test_every_module_beside_the_turn_stands_in_the_map():
    modules = {path.name for path in ROOT.glob("proxy/*.py")} - {"__init__.py", "__main__.py"}
    assert modules - set(re.findall(r"`proxy/(\w+\.py)`", PAGE)) == set()


def test_every_package_stands_in_the_map():
    packages = {path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("proxy/*/**/__init__.py")}
    assert packages - set(re.findall(r"`(proxy/[\w/]+)/`", PAGE)) == set()


def test_what_the_page_names_is_there():
    named = re.findall(r"`((?:proxy|filters|tests|bench|examples|config)/[\w./-]*)`", PAGE)
    assert [path for path in named if not (ROOT / path).exists()] == []
