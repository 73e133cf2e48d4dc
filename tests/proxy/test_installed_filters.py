"""Filters that an installed package brings by the entry point ``turnkeeper.filters``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

POINTS = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "{name}"
version = "1"
[tool.setuptools]
packages = ["{package}"]
[project.entry-points."turnkeeper.filters"]
{points}
"""
FILTERS = '''
from filters.base import AnswerFilter, RequestFilter

class Polite(RequestFilter):
    """Add a word."""
    word: str = "please"
    """Which."""

class Loud(AnswerFilter):
    """Raise the voice."""
'''
YAML = "upstreams: {{main: {{base_url: 'practice:'}}}}\npipelines: {{default: {{upstreams: [main], {}}}}}\n"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder into which two packages were installed."""
    site = tmp_path_factory.mktemp("site")
    points = ['polite = "my_filters.both"', 'loud = "my_filters.both:Loud"', 'sick = "my_filters.sick"']
    shipped = 'drop_messages = "my_filters.both"'
    install(
        site, tmp_path_factory.mktemp("one"), "my-filters", [*points, shipped, 'twice = "my_filters.both"']
    )
    install(site, tmp_path_factory.mktemp("two"), "other-filters", ['twice = "my_filters.both"'])
    return site


def install(site, source, name, points):
    package = source / name.replace("-", "_")
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "both.py").write_text(FILTERS)
    (package / "sick.py").write_text("import nonesuch")
    text = POINTS.format(name=name, package=package.name, points="\n".join(points))
    (source / "pyproject.toml").write_text(text)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    pip += ["--disable-pip-version-check", "--target", str(site), str(source)]
    subprocess.run(pip, check=True, capture_output=True, text=True)


@pytest.fixture
def check(site, tmp_path):
    def run(pipeline, *paths):
        file = tmp_path / "c.yaml"
        file.write_text(YAML.format(pipeline))
        return turnkeeper("check", str(file), paths=[*paths, site])

    return run


def turnkeeper(*arguments, paths):
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, paths), str(ROOT)])}
    command = [sys.executable, "-m", "proxy", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, check=False, text=True)


def test_an_installed_filter_is_a_step_as_any_other(check):
    done = check("request: [polite: {word: now}], answer: [loud]")
    assert (done.returncode, done.stderr) == (0, "")


def test_its_options_are_checked(check):
    done = check("request: [polite: {wrd: now}]")
    assert "request.1.polite.wrd: unknown key 'wrd'; did you mean 'word'?" in done.stdout


def test_one_that_cannot_be_loaded_is_a_fault_of_its_step_alone(check):
    done = check("request: [sick, polite]")
    (fault,) = done.stdout.splitlines()
    assert ":2: pipelines.default.request.1: the installed filter 'sick' cannot be loaded: Module" in fault
    assert done.stderr == ""


def test_a_typing_error_is_answered_with_the_installed_too(check):
    assert "did you mean 'polite'? Available: drop_messages, " in check("request: [polit]").stdout


def test_a_name_that_two_packages_bring_is_a_fault(check):
    done = check("request: [twice]")
    assert "more than one installed package brings a filter 'twice': my-filters, other-filters" in done.stdout


def test_a_package_does_not_replace_what_is_shipped(check):
    assert check("request: [drop_messages: {sources: [a]}]").returncode == 0
    assert "belongs under 'request:'" in check("answer: [drop_messages]").stdout
    assert "unknown key 'word'" in check("request: [drop_messages: {word: a}]").stdout


def test_a_folder_that_is_there_twice_is_one_package(check, site):
    assert check("request: [polite]", site).returncode == 0
