"""The project's pages: their blocks, their examples, and a folder in which these are executed."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import yaml

from filters.base import RequestFilter
from proxy.settings.filter_registry import FilterRegistry
from proxy.settings.pipeline import PipelineSettings
from proxy.settings.settings import Settings

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/README.md")])

_FENCED = re.compile(r"^( *)(`{3,})(\w*)\n(.*?)^\1\2$", re.MULTILINE | re.DOTALL)
_SERVES = re.compile(r"\b(make run|turnkeeper (serve|worker|tap)|docker run)\b")
_NAMED = re.compile(r"# ([\w.-]+\.(?:py|yaml|toml))\n")
_SERVERS = re.compile(r"http://127\.0\.0\.1:8080|https://voice\.example\.com")
_GREETED = re.compile(r"^Turnkeeper (\S+ on http://|works in the background)|^\d\d:\d\d:\d\d  ", re.MULTILINE)
_TIMES = {"created", "updated", "last_seen", "timestamp", "at", "began", "recorded", "expires", "score"}
_SHIPPED = FilterRegistry(installed=False)
_BASE = 'upstreams: {main: {base_url: "practice:"}}\n'


class Block(NamedTuple):
    """What stands between fences; ``line`` is where."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str | None:
        """The name of the file that this is, where its first line says so."""
        named = _NAMED.match(self.text)
        return named[1] if named else None


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(named(page), text.count("\n", 0, found.start()) + 1, found[3], textwrap.dedent(found[4]))
        for found in _FENCED.finditer(text)
    ]


# --- configurations


def completed(text: str) -> str:
    """A part of a configuration as a whole one: steps, keys of a pipeline, or keys of the file."""
    part = yaml.safe_load(text)
    if isinstance(part, list):
        return f"{_BASE}{_pipeline(f'{_side(part)}:', textwrap.indent(text, '  '))}"
    if not _is_of_settings(part):
        return f"{_BASE}{_pipeline(*(['upstreams: [main]'] if 'upstreams' not in part else []), text)}"
    upstreams = part.get("upstreams") or {"main": {}}
    rest = "" if "upstreams" in part else _BASE
    pipelines = "" if "pipelines" in part else _pipeline(f"upstreams: [{next(iter(upstreams))}]")
    return f"{text}\n{rest}{pipelines}"


def _side(steps: list[Any]) -> str:
    """Under which key these steps stand."""
    names = {step if isinstance(step, str) else next(iter(step)) for step in steps}
    return "request" if names <= set(_SHIPPED.names(RequestFilter)) else "answer"


def _is_of_settings(part: Mapping[str, Any]) -> bool:
    own = set(Settings.model_fields) - (set(PipelineSettings.model_fields) - {"upstreams"})
    return set(part) <= own and isinstance(part.get("upstreams", {}), dict)


def _pipeline(*texts: str) -> str:
    written = "\n".join(texts)
    upstreams = "" if "upstreams:" in written else "upstreams: [main]\n"
    return "pipelines:\n  default:\n" + textwrap.indent(upstreams + written + "\n", "    ")


# --- what is shown and what comes


def alike(shown: Any, got: Any, name: str = "") -> bool:
    """Whether what came is what a page shows; ``…`` stands for anything, and times are never the same."""
    if shown == "…" or (name in _TIMES and isinstance(shown, int | float) and isinstance(got, int | float)):
        return True
    if isinstance(shown, dict) and isinstance(got, dict):
        wanted = {key: value for key, value in shown.items() if key != "…"}
        further = "…" in shown or got.keys() == wanted.keys()
        return further and all(key in got and alike(value, got[key], key) for key, value in wanted.items())
    if isinstance(shown, list) and isinstance(got, list):
        wanted = shown[:-1] if shown[-1:] == ["…"] else shown
        further = wanted != shown or len(got) == len(wanted)
        return further and len(got) >= len(wanted) and all(map(alike, wanted, got))
    if isinstance(shown, str) and isinstance(got, str):
        pattern = ".*".join(map(re.escape, shown.split("…")))
        return re.fullmatch(pattern, got, re.DOTALL) is not None
    return bool(shown == got) and type(shown) is type(got)


def check_shown(block: Block, output: str) -> None:
    """What a block shows is what came."""
    if block.language == "json":
        got = json.loads(output)
        assert alike(json.loads(block.text), got), f"{block.place} shows another answer than {output}"
    else:
        assert alike(block.text.rstrip(), output.rstrip()), f"{block.place} shows another text than {output}"


# --- carrying out

_SHIMS = {
    "turnkeeper": 'exec {python} -m turnkeeper "$@"',
    # What it installs is tried by tests/test_install.py.
    "pip": '[ "$*" = "install ." ] && exec test -f {root}/pyproject.toml',
    "curl": 'exec {curl} --fail-with-body "$@"',
    # What serves is served; of all else it is enough that it can be made.
    "make": """
config=config/agora.yaml; args=; target=
for word; do case $word in
  CONFIG=*) config=${{word#CONFIG=}};; ARGS=*) args=${{word#ARGS=}};; *) target="$target $word";;
esac; done
if [ "$target" = " run" ]; then exec turnkeeper serve "$config" $args; fi
exec {make} -n -C {root} PYTHON={python} "$@"
""",
    # The image's own command, with the environment that is given to it.
    "docker": """
if [ "$1" = build ]; then exec test -f {root}/Dockerfile; fi
shift
while [ $# -gt 0 ]; do case $1 in
  -e) export "$2"; shift 2;; -p|-v|--tmpfs|--name) shift 2;; -*) shift;; *) break;;
esac; done
shift
export HOST=127.0.0.1
if [ $# -eq 0 ]; then exec turnkeeper serve config/agora.yaml; else exec "$@"; fi
""",
}


class Place:
    """A folder as a newcomer has it, with the commands that the pages use, before a server at ``root``."""

    def __init__(self, folder: Path, root: str, environ: Mapping[str, str]) -> None:
        self.folder = folder
        self._root = root
        self._environ = {
            **os.environ,
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "TURNKEEPER_URL": root,
            "PORT": "0",
            "COLUMNS": "120",
            **environ,
        }
        self._furnish()

    def _furnish(self) -> None:
        for name in ("config", "examples", "docs", "tests/golden"):
            shutil.copytree(ROOT / name, self.folder / name)
        words = {
            "python": sys.executable,
            "curl": shutil.which("curl"),
            "make": shutil.which("make"),
            "root": ROOT,
        }
        for folder in ("bin", ".venv/bin"):
            (self.folder / folder).mkdir(parents=True)
            for name, script in _SHIMS.items():
                path = self.folder / folder / name
                path.write_text(f"#!/bin/sh\n{script.format(**words)}\n")
                path.chmod(0o755)

    def carry_out(self, block: Block) -> str:
        """What comes of a block; a server is ended once it has greeted."""
        if block.file:
            (self.folder / block.file).write_text(block.text)
            return ""
        text = _SERVERS.sub(self._root, block.text).replace("HOST=0.0.0.0", "HOST=127.0.0.1")
        if block.language == "python":
            return self._run([sys.executable, "-c", text], block)
        if _SERVES.search(text.strip().splitlines()[-1]):
            self._serve(text, block)
            return ""
        return self._run(["sh", "-ec", text], block)

    def _run(self, command: list[str], block: Block) -> str:
        process = self._started(command, stderr=subprocess.PIPE)
        try:
            said, wrong = process.communicate(timeout=60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what a block leaves behind goes with it
        refused = '"error"' in said and process.returncode == 22
        assert process.returncode == 0 or refused, f"{block.place}: {said[-3000:]}{wrong[-3000:]}"
        return said

    def _started(self, command: list[str], *, stderr: int) -> subprocess.Popen[str]:
        """A process with a group of its own, so that what it starts can be ended with it."""
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )

    def _serve(self, text: str, block: Block) -> None:
        process = self._started(["sh", "-ec", text], stderr=subprocess.STDOUT)
        said = ""
        try:
            said = _until_greeted(process)
            _until_up(said)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            said += _rest(process)
        assert _GREETED.search(said), f"{block.place}: {said[-3000:]}"


def _until_greeted(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    said = ""
    end = time.monotonic() + 30
    while not _GREETED.search(said) and process.poll() is None and time.monotonic() < end:
        said += process.stdout.readline()
    return said


def _until_up(said: str) -> None:
    """A server that has greeted serves a moment later."""
    address = re.search(r"on (http://\S+)", said)
    end = time.monotonic() + 20
    while address and time.monotonic() < end:
        with contextlib.suppress(httpx2.TransportError):
            httpx2.get(f"{address[1]}/healthz", verify=False)
            return
        time.sleep(0.02)


def _rest(process: subprocess.Popen[str]) -> str:
    """Returns the rest of the output; it ends in any case."""
    try:
        return process.communicate(timeout=20)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise


def missing(block: Block) -> Iterator[str]:
    """The packages that a Python block needs and that are not installed."""
    for found in re.finditer(r"^(?:from|import) (\w+)", block.text, re.MULTILINE):
        if found[1] not in _installed() and not (ROOT / found[1]).is_dir():
            yield found[1]


@cache
def _installed() -> frozenset[str]:
    """As the packages themselves say: what is found on the path may be a folder of tests."""
    return frozenset(packages_distributions()) | sys.stdlib_module_names
