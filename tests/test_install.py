"""A wheel, installed where there is no checkout, serves in an empty folder."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("proxy", "filters", "turnkeeper", "config", "pyproject.toml", "README.md", "LICENSE")
OWN = """
filters: [shout.py]
upstreams: {main: {base_url: "practice:"}}
pipelines:
  default:
    upstreams: [main]
    request: [shout]
    tests:
      - {name: loud, messages: ["user: hi"], expect: ["user: HI"]}
"""
SHOUT = """
from turnkeeper import Context, Messages, RequestFilter


class Shout(RequestFilter):
    \"\"\"Say it louder.\"\"\"

    def apply(self, messages: Messages, context: Context) -> Messages:
        \"\"\"The messages in capitals.\"\"\"
        return [message.saying(message.text.upper()) for message in messages]
"""
HI = {"model": "practice", "messages": [{"role": "user", "content": "Hello"}]}


class Installation:
    """A virtual environment with the wheel in it, and the checkout's dependencies."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        (self.packages,) = folder.glob("lib/python*/site-packages")

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return {**kept, "PORT": "0", "PYTHONDONTWRITEBYTECODE": "1", **environ}

    def run(self, folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.bin / "turnkeeper", *arguments],
            cwd=folder,
            env=self.environ(environ),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @contextmanager
    def serving(self, folder: Path, *command: str, **environ: str) -> Iterator[str]:
        """The address at which a server greets."""
        process = subprocess.Popen(
            [self.bin / (command or ("turnkeeper",))[0], *command[1:], "serve"],
            cwd=folder,
            env=self.environ(environ),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout
            greeting = process.stdout.readline()
            found = re.search(r"http://\S+", greeting)
            assert found, greeting
            yield found[0]
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=30)
            finally:
                process.kill()


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    place = tmp_path_factory.mktemp("install")
    source = place / "source"
    source.mkdir()
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("*.pyc"))
        else:
            shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(place), str(source)]
    subprocess.run(wheel, check=True, timeout=110)
    (built,) = place.glob("*.whl")
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(place / "venv")], check=True, timeout=60
    )
    installation = Installation(place / "venv")
    target = [*pip, "--python", str(installation.bin / "python")]
    subprocess.run([*target, "install", "--no-deps", "--no-index", str(built)], check=True, timeout=60)
    # Its dependencies are those of the checkout: no network is needed.
    (installation.packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return installation


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def posted(url: str, body: object) -> str:
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def page(url: str) -> str:
    with urllib.request.urlopen(f"{url}/", timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def test_it_serves_in_an_empty_folder_and_the_page_shows_the_turn(installation, empty) -> None:
    with installation.serving(empty) as url:
        assert "I was shown 1 message" in posted(url, {**HI, "session_id": "room-1"})
        assert "room-1" in page(url)
    assert (empty / "turnkeeper.db").exists()


def test_it_serves_as_a_module(installation, empty) -> None:
    with installation.serving(empty, "python", "-m", "turnkeeper") as url:
        assert "I was shown" in posted(url, HI)


def test_the_configuration_is_the_folders_else_the_environments_else_the_shipped_one(
    installation, empty
) -> None:
    def error(**environ: str) -> str:
        return installation.run(empty, "export", "ann", **environ).stderr

    (empty / "broken.yaml").write_text("unknown: 1\n")
    # The shipped one is sound, and has no database yet.
    assert "There is no database" in error()
    assert "broken.yaml:1: unknown: " in error(TURNKEEPER_CONFIG="broken.yaml")
    (empty / "turnkeeper.yaml").write_text("mistaken: 1\n")
    assert "turnkeeper.yaml:1: mistaken: " in error(TURNKEEPER_CONFIG="broken.yaml")


def test_init_writes_the_shipped_configuration_and_nothing_over_another(installation, empty) -> None:
    done = installation.run(empty, "init")
    assert (done.returncode, done.stderr) == (0, "")
    shipped = (ROOT / "config" / "agora.yaml").read_bytes()
    assert (empty / "turnkeeper.yaml").read_bytes() == shipped
    assert installation.run(empty, "check", "turnkeeper.yaml").returncode == 0
    assert installation.run(empty, "test", "turnkeeper.yaml").returncode == 0
    (empty / "turnkeeper.yaml").write_text("mine")
    refused = installation.run(empty, "init")
    assert (refused.returncode, refused.stderr) == (
        1,
        "turnkeeper.yaml: exists already; --force overwrites it\n",
    )
    assert (empty / "turnkeeper.yaml").read_text() == "mine"
    assert installation.run(empty, "init", "--force").returncode == 0
    assert (empty / "turnkeeper.yaml").read_bytes() == shipped
    assert installation.run(empty, "init", "no/such/folder.yaml").returncode == 1
    assert installation.run(empty, "init", "other.yaml").returncode == 0


def test_a_filter_of_ones_own_imports_from_the_public_package(installation, empty) -> None:
    (empty / "turnkeeper.yaml").write_text(OWN)
    (empty / "shout.py").write_text(SHOUT)
    done = installation.run(empty, "test", "turnkeeper.yaml")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_a_shell_completes_commands(installation, empty) -> None:
    completing = {"_TURNKEEPER_COMPLETE": "complete_bash", "COMP_WORDS": "turnkeeper ser", "COMP_CWORD": "1"}
    assert installation.run(empty, **completing).stdout.split() == ["serve"]
    assert "turnkeeper" in installation.run(empty, "--show-completion", SHELL="/bin/bash").stdout


@pytest.mark.parametrize("content", ["VERSION = '2.4'\n", "raise RuntimeError\n", None])
def test_a_package_of_another_distribution_in_the_place_of_ours_is_named(
    installation, empty, content: str | None
) -> None:
    package = installation.packages / "proxy" / "__init__.py"
    own = package.read_text()
    other = installation.packages / "proxy.py-2.4.dist-info"
    other.mkdir(exist_ok=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: proxy.py\nVersion: 2.4\n")
    (other / "RECORD").write_text("proxy/__init__.py,,\n")
    try:
        package.unlink() if content is None else package.write_text(content)
        done = installation.run(empty, "check")
    finally:
        package.write_text(own)
        shutil.rmtree(other)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "proxy.py has overwritten or removed it" in done.stderr
    assert "pip install --force-reinstall" in done.stderr
