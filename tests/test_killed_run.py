"""A test run that is killed leaves no server behind."""

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
STARTED = 4
"""The watching process, a server, a worker, and a server of the worker's."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_killed_leaves_nothing_behind(number: signal.Signals):
    with subprocess.Popen([sys.executable, "-c", RUN], cwd=Path(__file__).parents[1]) as run:
        started = awaited(lambda: below(run.pid))
        watching = min(started)
        looks = sleeps(watching)
        assert until(lambda: sleeps(watching) > looks + 1)  # it has looked since
        run.send_signal(number)
    assert until(lambda: not leftovers.descendants(started, leftovers.processes()))


def below(pid: int) -> dict[int, leftovers.Process]:
    """All that a run has started, once that is everything."""
    listed = leftovers.processes()
    found = leftovers.descendants({pid: listed[pid]}, listed)
    del found[pid]
    return found if len(found) == STARTED else {}


def sleeps(pid: int) -> int:
    """How often a process has waited for something."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
