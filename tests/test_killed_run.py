"""A run of tests, or of a bench, that is killed leaves no server behind."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import leftovers
from tests.waiting import awaited, until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no /proc")

RUN = """
import subprocess, sys, time
from tests import leftovers

leftovers.watch()
server = [sys.executable, "-c", "import time; time.sleep(60)"]
worker = [sys.executable, "-c", f"import subprocess; subprocess.run({server})"]
children = [subprocess.Popen(server, env={}, start_new_session=True), subprocess.Popen(worker)]
time.sleep(60)
"""
BENCH = """
import os, sys, time
from pathlib import Path
from bench.serving import free_port, running

port = free_port()
server = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
with running(server, f"http://127.0.0.1:{port}", None, environ={}, log=Path(os.devnull)):
    time.sleep(60)
"""
STARTED = {RUN: 4, BENCH: 2}
"""The watching process and a server, and of the first a worker and a server of the worker's."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("code", [RUN, BENCH], ids=["tests", "bench"])
def test_a_run_that_is_killed_leaves_nothing_behind(code: str, number: signal.Signals):
    with subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[1]) as run:
        started = awaited(lambda: below(run.pid, STARTED[code]))
        watching = min(started)
        looks = sleeps(watching)
        assert until(lambda: sleeps(watching) > looks + 1)  # it has looked since
        run.send_signal(number)
    assert until(lambda: not leftovers.descendants(started, leftovers.processes()))


def below(pid: int, count: int) -> dict[int, leftovers.Process]:
    """Returns all processes that a run has started, once there are this many."""
    listed = leftovers.processes()
    found = leftovers.descendants({pid: listed[pid]}, listed)
    del found[pid]
    return found if len(found) == count else {}


def sleeps(pid: int) -> int:
    """How often a process has waited for something."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
