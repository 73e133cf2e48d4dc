"""A worker beside the servers uses the same store as they do."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from tests import preloaded
from tests.waiting import until

CONFIG = """
log: {format: FORMAT}
memory: {sessions: "sqlite:FOLDER/sessions.db"}
upstreams: {main: {base_url: "practice:"}}
pipelines: {default: {upstreams: [main]}}
"""


class Working:
    """``turnkeeper worker`` as a process of its own, until it is left; ``lines`` are what it has written."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "config.yaml"
        self._said = folder / "said.log"
        self.write(form="json")

    def write(self, text: str = CONFIG, form: str = "text") -> None:
        self.path.write_text(text.replace("FORMAT", form).replace("FOLDER", str(self.path.parent)))

    def __enter__(self) -> Self:
        with self._said.open("ab") as out:
            self.process = preloaded.start(["worker", str(self.path)], os.environ, out)
        assert until(lambda: self.lines or self.process.poll() is not None)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def lines(self) -> list[str]:
        return self._said.read_text().splitlines()

    def hang_up(self) -> str:
        """SIGHUP; what it writes about it."""
        before = len(self.lines)
        self.process.send_signal(signal.SIGHUP)
        assert until(lambda: len(self.lines) > before or self.process.poll() is not None)
        assert self.process.poll() is None
        return self.lines[before]


@pytest.fixture
def working(tmp_path: Path) -> Iterator[Working]:
    with Working(tmp_path) as worker:
        yield worker


def test_a_hang_up_signal_has_a_worker_read_its_configuration_again(working: Working) -> None:
    again = f"The configuration was read again: {working.path}"
    working.write(form="text")
    assert json.loads(working.hang_up())["message"] == again
    assert working.hang_up().endswith(f" INFO {again}")
    working.process.terminate()
    assert working.process.wait(10) == 0


@pytest.mark.parametrize("bad", [CONFIG.replace("upstreams:", "upstreamz:"), CONFIG.replace("memory:", "x:")])
def test_a_bad_edit_changes_nothing_for_a_worker(working: Working, bad: str) -> None:
    working.write(bad)
    told = json.loads(working.hang_up())
    assert (told["level"], "new configuration is not used" in told["message"]) == ("error", True)
    working.write(CONFIG.replace("memory:", "#"))
    assert "nothing is stored" in json.loads(working.hang_up())["message"]
    working.process.terminate()
    assert working.process.wait(10) == 0


def test_an_edit_that_nobody_reckoned_with_changes_nothing_for_a_worker(working: Working) -> None:
    odd = "class Odd(Exception):\n    def __str__(self):\n        raise SystemExit\n\nraise Odd\n"
    (working.path.parent / "odd.py").write_text(odd)
    working.write(f"filters: [odd.py]\n{CONFIG}")
    assert "new configuration is not used" in json.loads(working.hang_up())["message"]
    working.process.terminate()
    assert working.process.wait(10) == 0


@pytest.mark.parametrize(
    ("of_memory", "says"),
    [("", "nothing is stored"), ("memory: {sessions: 'memory:'}", "in the server's own process")],
)
def test_a_worker_that_can_never_find_anything_does_not_begin(
    tmp_path: Path, of_memory: str, says: str
) -> None:
    bare = "\n".join(line for line in CONFIG.splitlines() if not line.startswith("memory:"))
    (tmp_path / "c.yaml").write_text(f"{of_memory}\n{bare.replace('FORMAT', 'text')}")
    done = preloaded.run("worker", str(tmp_path / "c.yaml"), folder=tmp_path, env=os.environ)
    assert (done.returncode, done.stdout) == (1, "")
    assert says in done.stderr
