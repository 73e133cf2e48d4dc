"""The end of the server, as callers and those who send them see it."""

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from tests import preloaded
from tests.peers.fake_upstream import (
    DONE,
    END,
    HANG,
    HEAD,
    ROLE,
    FakeUpstream,
    answer,
    chunk,
    completion,
    delta,
)
from tests.peers.postgres_server import PostgresServer
from tests.peers.raw_client import RawClient, request
from tests.proxy_server import CONFIG, ProxyServer
from tests.serving_process import LISTEN, ServingProcess, at_rest
from tests.waiting import until

STUCK = """
import time
from pathlib import Path

from filters.base import RequestFilter


class Stuck(RequestFilter):
    def apply(self, messages, context):
        Path(__file__).with_name("began").touch()
        time.sleep(60)
        return messages
"""
CALL = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}], "stream": True}


@pytest.fixture
def serving(tmp_path: Path, upstream: FakeUpstream) -> Iterator[ServingProcess]:
    config = 'listen: {port: "${PORT}"}\n' + CONFIG
    with ServingProcess(tmp_path, config, UPSTREAM_BASE_URL=upstream.url) as process:
        yield process


def test_while_a_call_lasts_the_server_says_that_it_is_going_away(
    serving: ServingProcess, upstream: FakeUpstream
) -> None:
    upstream.says(HEAD, chunk(ROLE), chunk(delta(content="one")), 3.0, chunk(DONE), END)
    with serving.client.stream("POST", "/v1/chat/completions", json=CALL) as got:
        serving.process.send_signal(signal.SIGTERM)
        assert until(lambda: serving.readiness() == 503)
        assert got.read().endswith(DONE)
    assert serving.process.wait(20) == 0


@pytest.mark.parametrize("memory", ["", "memory: {sessions: 'sqlite:%s/m'}\n"])
def test_a_signal_that_comes_doubled_is_one(tmp_path: Path, upstream: FakeUpstream, memory: str) -> None:
    """``timeout`` signals a command, and then its group with it."""
    config = LISTEN + CONFIG + (memory and memory % tmp_path)
    upstream.says(HEAD, chunk(ROLE), chunk(delta(content="one")), 1.0, chunk(DONE), END)
    with ServingProcess(tmp_path, config, UPSTREAM_BASE_URL=upstream.url) as serving:
        with serving.client.stream("POST", "/v1/chat/completions", json=CALL) as got:
            serving.process.send_signal(signal.SIGTERM)
            time.sleep(0.02)  # two at once would be one
            serving.process.send_signal(signal.SIGTERM)
            assert got.read().endswith(DONE)
        assert serving.process.wait(20) == 0
        assert "was killed" not in serving.log


def test_the_server_gives_calls_their_grace_and_no_more(tmp_path: Path, upstream: FakeUpstream) -> None:
    upstream.says(HEAD, chunk(ROLE), chunk(delta(content="one")), HANG)
    (tmp_path / "config.yaml").write_text(CONFIG + "listen: {port: 0, grace: 1s}\n")
    environ = {**os.environ, "UPSTREAM_BASE_URL": upstream.url}
    with preloaded.greeting("serve", str(tmp_path / "config.yaml"), env=environ) as (process, line):
        root = line.split()[-1]
        with httpx2.stream("POST", f"{root}/v1/chat/completions", json=CALL, timeout=10) as got:
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert b"shutting_down" in got.read()
        assert process.wait(20) == 0
    assert 0.9 < time.monotonic() - began < 8


def test_a_stream_that_outlasts_the_server_ends_with_an_error_event(
    proxy: ProxyServer, upstream: FakeUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    upstream.says(HEAD, chunk(ROLE), chunk(delta(content="one")), HANG)
    with proxy.client.stream("POST", "/v1/chat/completions", json=CALL) as got:
        proxy.app.drain()
        proxy.end_within(0.2)
        told = json.loads(got.read().split(b"data: ")[-1])
    assert told["error"] | {"message": ""} == {
        "message": "",
        "type": "server_error",
        "param": None,
        "code": "shutting_down",
    }
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("calls", [[request(stream=True)], [request(), request()]], ids=["within", "behind"])
def test_who_does_not_read_does_not_hold_up_the_end(
    tmp_path: Path, upstream: FakeUpstream, calls: list[bytes]
) -> None:
    """Within an answer, or behind one that is still on its way to him."""
    word = chunk(delta(content="x" * 100_000))
    whole = answer(completion("x" * 30_000_000))
    upstream.script = lambda asked: (
        [HEAD, chunk(ROLE), *([word] * 300), HANG] if asked.json.get("stream") else whole
    )
    config = 'listen: {port: "${PORT}", grace: 1s}\n' + CONFIG
    with (
        ServingProcess(tmp_path, config, UPSTREAM_BASE_URL=upstream.url) as serving,
        RawClient(serving.port) as client,
    ):
        client.send(b"".join(calls))
        assert until(lambda: len(upstream.requests) == len(calls))
        time.sleep(1)
        assert serving.stop() == 0
        assert serving.log.count("INFO turn ") == len(calls)
        assert "Traceback" not in serving.log


@pytest.mark.parametrize("begun", [b"", b"POST /v1/chat/"])
def test_a_call_on_its_way_when_the_server_closes_its_door_is_answered(
    tmp_path: Path, upstream: FakeUpstream, begun: bytes
) -> None:
    """A balancer that has connected sends its call to no other server any more."""
    whole = request(extra="connection: close\r\n")
    with (
        ServingProcess(tmp_path, LISTEN + CONFIG, UPSTREAM_BASE_URL=upstream.url) as serving,
        RawClient(serving.port) as client,
    ):
        if begun:
            client.send(begun)
        serving.process.send_signal(signal.SIGTERM)
        assert until(lambda: not is_listening(serving.port))
        client.send(whole.removeprefix(begun))
        assert client.rest().startswith(b"HTTP/1.1 200 ")
        assert serving.process.wait(20) == 0


def test_connections_that_clients_keep_end_behind_their_next_answer(
    serving: ServingProcess, upstream: FakeUpstream
) -> None:
    with RawClient(serving.port) as client:
        client.send(request())
        assert b"connection: close" not in client.until(b"Hello there.")
        serving.process.send_signal(signal.SIGTERM)
        assert until(lambda: serving.client.get("/readyz").headers.get("connection") == "close")
        client.send(request())
        assert b"connection: close" in client.rest()
    assert serving.process.wait(20) == 0


def test_callers_who_have_connected_when_the_server_closes_its_door_are_answered(
    tmp_path: Path, upstream: FakeUpstream
) -> None:
    """Also more of them than it takes in at once, before it closes."""
    config = 'listen: {port: "${PORT}", drain: 2s}\n' + CONFIG
    with ServingProcess(tmp_path, config, UPSTREAM_BASE_URL=upstream.url) as serving, ExitStack() as clients:
        serving.process.send_signal(signal.SIGTERM)
        assert until(lambda: serving.client.get("/readyz").headers.get("connection") == "close")
        os.kill(serving.pid, signal.SIGSTOP)
        connected = [clients.enter_context(RawClient(serving.port)) for _ in range(60)]
        for each in connected:
            each.send(request(extra="connection: close\r\n"))
        time.sleep(2.2)  # beyond ``drain``
        os.kill(serving.pid, signal.SIGCONT)
        assert [each.rest()[:13] for each in connected] == [b"HTTP/1.1 200 "] * 60
        assert serving.process.wait(20) == 0


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("pause", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_a_signal_right_behind_the_greeting_is_not_lost(tmp_path: Path, pause: float) -> None:
    """A supervisor may change its mind before there is a loop to end."""
    (tmp_path / "config.yaml").write_text(CONFIG + "listen: {port: 0}\n")
    with preloaded.greeting("serve", str(tmp_path / "config.yaml"), env=os.environ) as (process, _):
        time.sleep(pause)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.parametrize("pause", [0.0, 0.02, 0.05, 0.1])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_reload_right_behind_the_greeting_is_carried_out(
    tmp_path: Path, pause: float, workers: int
) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG + "listen: {port: 0}\n")
    command = ["serve", str(tmp_path / "config.yaml"), f"--workers={workers}"]
    said = tmp_path / "said.log"
    with said.open("wb") as log, preloaded.greeting(*command, env=os.environ, err=log) as (process, _):
        time.sleep(pause)
        process.send_signal(signal.SIGHUP)
        again = "The configuration was read again"
        assert until(lambda: said.read_text().count(again) == workers, 15)
        process.terminate()
        assert process.wait(20) == 0


def test_whoever_is_told_to_end_reads_nothing_again(serving: ServingProcess, upstream: FakeUpstream) -> None:
    upstream.says(HEAD, chunk(ROLE), chunk(delta(content="one")), 2.0, chunk(DONE), END)
    with serving.client.stream("POST", "/v1/chat/completions", json=CALL) as got:
        serving.process.send_signal(signal.SIGTERM)
        assert until(lambda: serving.readiness() == 503)
        while serving.process.poll() is None:
            serving.hang_up()
            time.sleep(0.005)
        assert got.read().endswith(DONE)
    assert serving.process.returncode == 0
    assert "read again" not in serving.log


def test_a_database_that_is_silent_does_not_hold_up_the_end(
    tmp_path: Path, upstream: FakeUpstream, postgres: PostgresServer
) -> None:
    """Whoever started it waits for ten seconds, as Docker does: nine are the calls' and memory's."""
    url = postgres.url(asyncio.run(postgres.new_schema()))
    config = LISTEN + CONFIG + 'memory: {sessions: "${MEMORY_URL}"}\n'
    environ = {"UPSTREAM_BASE_URL": upstream.url, "MEMORY_URL": url}
    with ServingProcess(tmp_path, config, **environ) as serving:
        assert serving.chat("Hi", "s1").status_code == 200
        assert until(lambda: at_rest(serving.client))
        with postgres.frozen():
            for session in ("s1", "s2", "s3"):
                assert serving.chat("Are you there?", session).status_code == 200
            began = time.monotonic()
            assert serving.stop() == 0
            assert time.monotonic() - began < 10
        assert "3 turns could not be written to memory" in serving.log


@pytest.mark.parametrize(("kind", "code"), [("background", 0), ("server", 1)])
def test_a_process_that_does_not_end_in_time_is_killed(
    tmp_path: Path, upstream: FakeUpstream, kind: str, code: int
) -> None:
    """What the background leaves undone is due in the store, and no failure."""
    config = (
        LISTEN.replace("drain", "grace: 100ms, drain")
        + CONFIG
        + f"memory: {{sessions: 'sqlite:{tmp_path}/m'}}\n"
    )
    with ServingProcess(tmp_path, config, UPSTREAM_BASE_URL=upstream.url) as serving:
        assert serving.chat("Hi", "s1").status_code == 200
        assert until(lambda: at_rest(serving.client))
        processes = [serving.background, *serving.members]
        stopped = processes[0 if kind == "background" else 1]
        assert stopped
        os.kill(stopped, signal.SIGSTOP)
        assert serving.stop() == code
        assert until(lambda: ("was killed" in serving.log) == bool(code), 5)
        assert not any(Path(f"/proc/{process}").exists() for process in processes)


@pytest.mark.parametrize("path", ["/v1/explain", "/v1/chat/completions"], ids=["in a thread", "on the loop"])
def test_a_filter_that_never_ends_does_not_hold_up_the_end(
    tmp_path: Path, upstream: FakeUpstream, path: str
) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    config = LISTEN.replace("drain", "grace: 100ms, drain") + CONFIG
    config = "filters: [stuck.py]\n" + config.replace("request: []", "request: [stuck]")
    with (
        ServingProcess(tmp_path, config, UPSTREAM_BASE_URL=upstream.url) as serving,
        RawClient(serving.port) as client,
    ):
        client.send(request(path))
        assert until((tmp_path / "began").exists)
        assert serving.stop() == 0


def test_new_calls_are_taken_until_a_balancer_has_noticed(tmp_path: Path, upstream: FakeUpstream) -> None:
    config = 'listen: {port: "${PORT}", drain: 1s}\n' + CONFIG
    with ServingProcess(tmp_path, config, UPSTREAM_BASE_URL=upstream.url) as serving:
        serving.process.terminate()
        began = time.monotonic()
        assert until(lambda: serving.readiness() == 503)
        assert serving.chat().status_code == 200  # over a connection of its own
        upstream.says(HEAD, chunk(ROLE), chunk(delta(content="one")), 2.0, chunk(DONE), END)
        with httpx2.stream(
            "POST", f"{serving.root}/v1/chat/completions", json=CALL, timeout=10
        ) as got:  # it began in time, and may end
            assert until(lambda: is_refused(serving.port), 3)
            assert time.monotonic() - began > 0.9
            assert got.read().endswith(DONE)
        assert serving.process.wait(10) == 0


def is_refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except ConnectionRefusedError:
        return True
    return False
