"""The first call finds a connection to the model, and so do calls after a reload."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.contract_upstream import server_context
from tests.peers.fake_upstream import FakeUpstream
from tests.serving_process import ServingProcess, until

CONFIG = """
listen: {port: "${PORT}"}
log: {level: LEVEL}
upstreams: {main: {base_url: "URL"}}
pipelines:
  default: {upstreams: [main]}
"""


def config(url: str, level: str = "info") -> str:
    return CONFIG.replace("URL", url).replace("LEVEL", level)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trust(authority: trustme.CA, tmp_path: Path) -> str:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return str(tmp_path / "ca.pem")


@pytest.fixture
def model(authority: trustme.CA) -> Iterator[FakeUpstream]:
    with FakeUpstream(server_context(authority, "127.0.0.1")) as fake:
        yield fake


def is_warm(upstream: FakeUpstream) -> bool:
    return until(lambda: upstream.open == 1)


def test_the_first_call_finds_a_connection(model: FakeUpstream, trust: str, tmp_path: Path) -> None:
    with ServingProcess(tmp_path, config(model.url), SSL_CERT_FILE=trust) as serving:
        assert is_warm(model)
        assert model.requests == []
        assert serving.chat().status_code == 200
        assert (model.accepted, len(model.requests)) == (1, 1)


def test_after_a_reload_the_new_upstream_has_a_connection_and_the_old_one_none(
    model: FakeUpstream, upstream: FakeUpstream, trust: str, tmp_path: Path
) -> None:
    with ServingProcess(tmp_path, config(upstream.url), SSL_CERT_FILE=trust) as serving:
        assert is_warm(upstream)
        serving.path.write_text(config(model.url))
        serving.hang_up()
        assert is_warm(model)
        assert until(lambda: upstream.open == 0)
        assert serving.chat().status_code == 200
        assert (model.accepted, len(model.requests)) == (1, 1)


@pytest.mark.parametrize(("level", "lines"), [("info", 0), ("debug", 1)])
def test_a_dead_upstream_delays_no_start_and_is_told_of_to_those_who_debug(
    tmp_path: Path, level: str, lines: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ServingProcess(tmp_path, config(f"http://127.0.0.1:{port}/v1", level)) as serving:
        assert serving.chat().status_code == 502
        serving.stop()
        told = [line for line in serving.log.splitlines() if "opened early" in line]
        assert len(told) == lines, serving.log


def test_a_silent_upstream_delays_no_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/v1"
        with ServingProcess(tmp_path, config(url)) as serving:
            began = time.monotonic()
            assert serving.client.get("/healthz").status_code == 200
            assert time.monotonic() - began < 1
            assert serving.stop() == 0
            assert time.monotonic() - began < 5
