"""Clocks decide nothing: calls whose turns are answered by hosts whose clocks are seconds apart."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import pytest

from tests.e2e.conftest import Address
from tests.e2e.test_generated_calls import check_between_processes, with_window
from tests.peers.fake_upstream import FakeUpstream
from tests.serving_process import ServingProcess
from tests.voice_engine import INTERRUPTIONS, NEWEST_ONLY, Habits

SKEWS = (-5.0, 0.0, 5.0)
ASIDE = """
import runpy, sys, time
own = time.time
time.time = lambda: own() + {skew}
sys.argv[0] = "proxy"
runpy.run_module("proxy", run_name="__main__")
"""
"""Runs the command line on a host whose clock is so many seconds ahead."""
CALLS = [
    Habits(window, numbered, interruption, 0.3)
    for window, numbered, interruption in product((NEWEST_ONLY, 8, None), (False, True), INTERRUPTIONS)
]

Hosts = Callable[[str], list[ServingProcess]]
shared_stores = pytest.mark.parametrize("store", ["redis", "postgresql"])


@pytest.fixture
def hosts(tmp_path: Path, upstream: FakeUpstream, address: Address) -> Iterator[Hosts]:
    """Starts a server for each clock, with one store for all of them."""
    with ExitStack() as started:

        def start(store: str) -> list[ServingProcess]:
            environ = {"MEMORY_URL": address(store), "SUMMARY_MODEL": "notes", "HOST": "127.0.0.1"}
            environ |= {"UPSTREAM_BASE_URL": upstream.url, "TMPDIR": str(tmp_path)}
            servers = []
            for i, skew in enumerate(SKEWS):
                folder = tmp_path / str(i)
                folder.mkdir()
                server = ServingProcess(folder, with_window(24, 8), **environ)
                server.command[:3] = [sys.executable, "-c", ASIDE.format(skew=skew)]
                servers.append(started.enter_context(server))
            return servers

        yield start


@shared_stores
def test_whichever_clock_a_host_has_each_turn_is_read_once(
    hosts: Hosts, upstream: FakeUpstream, store: str
) -> None:
    ports = [server.port for server in hosts(store)]
    check_between_processes(upstream, ports, CALLS, 10, at_once=len(CALLS))
