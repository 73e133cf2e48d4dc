import gc
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from proxy.memory import recorder
from proxy.memory.archive import archivist
from tests import leftovers
from tests.peers.fake_upstream import FakeUpstream
from tests.peers.postgres_server import PostgresServer
from tests.proxy_server import CONFIG, ProxyServer, Serve
from tests.tried import Tried, noting, table

# A machine that does other things as well may be slow: that is no fault of a law.
# What a counterexample could do without is not worth minutes.
settings.register_profile(
    "turnkeeper",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[phase for phase in Phase if phase is not Phase.explain],
)
settings.load_profile("turnkeeper")
# What judges a change draws the same examples each time: `make test` and the long suites look for new ones.
settings.register_profile("repeatable", derandomize=True)

# A test's memory is its own, and gone with it.
OWN = {"MEMORY_URL": "memory:"}
AGORA = Path(__file__).parent.parent / "config" / "agora.yaml"


def pytest_sessionstart(session: pytest.Session) -> None:
    """No server outlives a killed run; pytest's workers are among the processes that it starts."""
    if not hasattr(session.config, "workerinput"):
        leftovers.watch()


def pytest_collection_finish() -> None:
    """What pytest knows of thousands of tests is nothing that one of them leaves behind."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One for all tests of a process, each in a schema of its own."""
    with closing(PostgresServer()) as server:
        yield server


@pytest.fixture
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as fake:
        yield fake


@pytest.fixture
def serve(tmp_path: Path, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts proxies in front of the fake upstream; ``config`` is YAML or a file."""
    with ExitStack() as stack:

        def start(config: str | Path = CONFIG, **environ: str) -> ProxyServer:
            if isinstance(config, str):
                path = tmp_path / "config.yaml"
                path.write_text(config)
            else:
                path = config
            return stack.enter_context(
                ProxyServer(path, {**OWN, "UPSTREAM_BASE_URL": upstream.url, **environ})
            )

        yield start
        # What memory has not taken by the end of a test is nobody's: no server waits for it.
        monkeypatch.setattr(recorder, "_DRAIN_WITHIN", 0.1)
        monkeypatch.setattr(archivist, "_FAREWELL", 0.1)


@pytest.fixture
def proxy(serve: Serve) -> ProxyServer:
    """A proxy with an empty chain."""
    return serve()


@pytest.fixture
def agora(serve: Serve) -> ProxyServer:
    """A proxy on the shipped configuration."""
    return serve(AGORA)


@pytest.fixture
def tried(request: pytest.FixtureRequest) -> Tried:
    """Notes a fault that was tried, and what whoever was on the other side got."""
    return noting(request.node)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Lists what was tried after a run of the faults alone."""
    if config.option.markexpr != "faults":
        return
    reports = [one for one in terminalreporter.stats.get("passed", []) if one.when == "call"]
    if lines := table(reports):
        terminalreporter.section("faults tried")
        for line in lines:
            terminalreporter.write_line(line)
