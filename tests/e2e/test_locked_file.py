"""While the memory's file is locked the log names who locks it: another program, or a process of our own."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.peers.fake_upstream import FakeUpstream, answer, completion
from tests.serving_process import LISTEN, ServingProcess
from tests.waiting import awaited, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own list of locks is read")

CONFIG = (
    LISTEN
    + """
memory: {sessions: "${MEMORY_URL}"}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", model: one}}
pipelines: {default: {upstreams: [main]}}
"""
)
_LOCKING = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)
connection.execute("BEGIN IMMEDIATE")
print("ready", flush=True)
sys.stdin.read()
"""
# Twenty-odd tables, thrice beside each other: a while, on any machine, in which a process can be stopped.
_SLOW = (
    "CREATE TRIGGER slow AFTER INSERT ON turnkeeper_turns BEGIN"
    " SELECT count(*) FROM sqlite_master, sqlite_master AS b, sqlite_master AS c, sqlite_master AS d; END"
)


@pytest.fixture
def serving(tmp_path: Path, upstream: FakeUpstream) -> Iterator[ServingProcess]:
    upstream.script = lambda _: answer(completion("Yes."))
    url = f"sqlite:{tmp_path / 'memory.db'}"
    with ServingProcess(tmp_path, CONFIG, UPSTREAM_BASE_URL=upstream.url, MEMORY_URL=url) as process:
        yield process


def refusal(serving: ServingProcess) -> str:
    """What the log says of the first turn that could not be written."""
    found = re.search(r"Memory cannot be written: (.*)", serving.log)
    return found[1] if found else ""


def test_another_program_is_named(serving: ServingProcess, tmp_path: Path) -> None:
    assert serving.chat("Hello", "first", user="ann").status_code == 200
    command = [sys.executable, "-c", _LOCKING, str(tmp_path / "memory.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout
        assert program.stdout.readline() == b"ready\n"
        assert serving.chat("Hello", "second", user="ann").status_code == 200
        said = awaited(lambda: refusal(serving), 20)
        assert re.search(rf"locked by another program \(.*python.*, process {program.pid}\)", said)
    assert until(lambda: "Memory is written again" in serving.log, 20)


def test_the_background_process_is_no_other_program(serving: ServingProcess, tmp_path: Path) -> None:
    file = tmp_path / "memory.db"
    with closing(sqlite3.connect(file, isolation_level=None, timeout=30)) as connection:
        connection.execute(_SLOW)
    pid = awaited(lambda: serving.background)
    assert serving.chat("Hello", "first", user="ann").status_code == 200

    def locks() -> bool:
        """Whether the background process may write, and no other."""
        index = Path(f"{file}-shm").stat().st_ino
        pattern = rf"POSIX +ADVISORY +WRITE +{pid} \S+:{index} 120 120$"
        return bool(re.search(pattern, Path("/proc/locks").read_text(), re.MULTILINE))

    def is_stopped_with_the_lock() -> bool:
        if locks():
            os.kill(pid, signal.SIGSTOP)
            if locks():
                return True
            os.kill(pid, signal.SIGCONT)  # it had just done with it
        return False

    assert until(is_stopped_with_the_lock, 20)
    try:
        assert serving.chat("Hello", "second", user="ann").status_code == 200
        said = awaited(lambda: refusal(serving), 20)
        assert f"it is locked by another process of Turnkeeper ({pid})" in said
        assert "program" not in said
    finally:
        with closing(sqlite3.connect(file, isolation_level=None, timeout=60)) as connection:
            os.kill(pid, signal.SIGCONT)
            connection.execute("DROP TRIGGER slow")
    assert until(lambda: "Memory is written again" in serving.log, 20)
