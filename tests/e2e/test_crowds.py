"""More callers than a system lets a program have by default."""

import re
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.peers.fake_upstream import FakeUpstream, answer, completion
from tests.proxy_server import CONFIG
from tests.serving_process import LISTEN, ServingProcess
from tests.waiting import until

SOFT = 60


@pytest.fixture
def serving(tmp_path: Path, upstream: FakeUpstream) -> Iterator[ServingProcess]:
    """Started as most systems start whoever asks for nothing: with fewer open files than it may have."""
    process = ServingProcess(tmp_path, LISTEN + CONFIG, UPSTREAM_BASE_URL=upstream.url)
    process.command = ["sh", "-c", f'ulimit -S -n {SOFT}; exec "$@"', "sh", *process.command]
    with process:
        yield process


def test_a_server_has_as_many_connections_as_the_system_lets_it(serving: ServingProcess) -> None:
    with ExitStack() as idle:
        for _ in range(SOFT):
            idle.enter_context(socket.create_connection(("127.0.0.1", serving.port)))
        assert serving.chat().status_code == 200


def test_the_log_says_so_before_all_files_are_open_and_once(serving: ServingProcess) -> None:
    hard = resource.prlimit(serving.pid, resource.RLIMIT_NOFILE)[1]
    few = serving.open_files() + 30
    resource.prlimit(serving.pid, resource.RLIMIT_NOFILE, (few, hard))
    assert "ulimit" not in serving.log
    for _ in range(2):
        with ExitStack() as idle:
            for _ in range(40):
                idle.enter_context(socket.create_connection(("127.0.0.1", serving.port)))
            assert until(lambda: f"of the {few} files" in serving.log)
            time.sleep(1.2)  # longer than between two looks
        assert until(lambda: serving.open_files() < few - 20)
        assert serving.chat().status_code == 200
    assert serving.log.count("ulimit -n") == 1


def asked(serving: ServingProcess) -> tuple[int, str | None]:
    """What a call gets over a connection that stands."""
    body = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}
    got = serving.client.post("/v1/chat/completions", json=body)
    return got.status_code, got.json().get("error", {}).get("code")


def test_a_server_without_files_left_blames_nobody_else(
    serving: ServingProcess, upstream: FakeUpstream
) -> None:
    upstream.says(*answer(completion(), headers="connection: close\r\n"))
    assert asked(serving) == (200, None)
    limits = resource.prlimit(serving.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(serving.pid, resource.RLIMIT_NOFILE, (0, limits[1]))
    assert {asked(serving) for _ in range(8)} == {(503, "no_files_left")}
    resource.prlimit(serving.pid, resource.RLIMIT_NOFILE, limits)
    states = re.findall(
        r'turnkeeper_breaker_state\{.*?state="(.*?)".*?\} 1', serving.client.get("/metrics").text
    )
    assert states == ["closed"]
    assert asked(serving) == (200, None)
    assert serving.client.get("/readyz").json()["status"] == "ready"
