"""The commands to Redis that a turn takes, with all limits on."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import redis

from tests.peers import redis_server
from tests.peers.fake_upstream import FakeUpstream
from tests.peers.redis_server import RedisServer
from tests.peers.relay import Relay
from tests.serving_process import ServingProcess, at_rest
from tests.waiting import awaited, until

CONFIG = """
listen: {port: "${PORT}", drain: 10ms}
keys: "acme:one"
limits: {requests_per_minute: 1000, tokens_per_minute: 1000000, concurrent_streams: 4}
memory: {sessions: "${MEMORY_URL}", deadline: 2s, archive: {keep: "off"}}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", model: one}}
pipelines: {default: {upstreams: [main], request: [restore_history]}}
"""
KEY = {"Authorization": "Bearer one"}
TURNS = 20
LATE = 0.15


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server.single(tmp_path) as server:
        yield server


@contextlib.contextmanager
def serving(folder: Path, url: str, upstream: FakeUpstream) -> Iterator[httpx2.Client]:
    """A client of a server whose memory is at an address."""
    environ = {"MEMORY_URL": url, "UPSTREAM_BASE_URL": upstream.url}
    with (
        ServingProcess(folder, CONFIG, **environ) as host,
        httpx2.Client(base_url=host.root, headers=KEY) as client,
    ):
        yield client


def say(client: httpx2.Client, number: int) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": f"Tell me of {number}."}]}
    answer = client.post("/v1/chat/completions", json=body, headers={"X-Session-Id": "call"})
    assert answer.status_code == 200
    assert "x-turnkeeper-degraded" not in answer.headers
    assert answer.headers["x-ratelimit-limit-tokens"] == "1000000"


def subject(key: str) -> str:
    """What such a key is for: the end of its name."""
    return key.rpartition("}:")[2]


OF_THE_BACKGROUND = {"work", "lease", "ids"}
"""Which sessions are due, which process does what, and, once in a minute, a session's place in lists."""


def commands(monitor: redis.client.Monitor, last: str) -> list[tuple[str, str]]:
    """The commands of calls up to the last, each with what its key is for; a script is one."""
    found = []
    while (one := monitor.next_command())["command"] != f"ECHO {last}":
        name, *arguments = one["command"].split(" ")
        about = subject(arguments[2 if name == "EVALSHA" else 0]) if arguments else ""
        if one["client_type"] != "lua" and name != "PING" and about not in OF_THE_BACKGROUND:
            found.append((name, about))
    return found


MESSAGE = ("EVALSHA", "0")


def sends_messages(client: httpx2.Client, server: RedisServer, monitor: redis.client.Monitor) -> bool:
    """Whether a turn is announced to others."""
    say(client, 0)
    assert awaited(lambda: at_rest(client))
    server.ask("ECHO", "warm")
    return MESSAGE in commands(monitor, "warm")


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_turn_is_a_read_a_write_and_one_script_before_it(
    server: RedisServer, upstream: FakeUpstream, tmp_path: Path, hosts: int
) -> None:
    """And a message to other hosts, if there are any. The counts at its end go with its write."""
    with (
        contextlib.ExitStack() as started,
        serving(tmp_path, server.url, upstream) as client,
        redis.Redis(port=server.port, protocol=2) as watching,
        watching.monitor() as monitor,
    ):
        turns = []
        if hosts > 1:
            (tmp_path / "other").mkdir()
            started.enter_context(serving(tmp_path / "other", server.url, upstream))
        assert until(lambda: {sends_messages(client, server, monitor) for _ in range(5)} == {hosts > 1}, 20)
        for number in range(TURNS):
            say(client, number)
            assert awaited(lambda: at_rest(client))
            server.ask("ECHO", f"turn-{number}")
            turns.append(commands(monitor, f"turn-{number}"))
    counts = Counter(command for turn in turns for command in turn)
    usual = {command: round(count / TURNS) for command, count in counts.items() if count > TURNS / 2}
    of_each = [("EVALSHA", "windows"), ("HMGET", "hot"), ("EVALSHA", "hot"), *[MESSAGE] * (hosts > 1)]
    assert usual == dict.fromkeys(of_each, 1), turns
    assert awaited(lambda: server.ask("ZCARD", "turnkeeper:{#acme}:leases") == 0)
    requests, tokens = server.ask("HMGET", "turnkeeper:{#acme}:windows", "requests", "tokens")
    assert TURNS <= int(requests) < int(tokens)


def test_a_caller_waits_for_two_round_trips(
    server: RedisServer, upstream: FakeUpstream, tmp_path: Path
) -> None:
    with (
        Relay(server.port) as relay,
        serving(tmp_path, f"redis://127.0.0.1:{relay.port}", upstream) as client,
    ):
        say(client, 0)
        assert awaited(lambda: at_rest(client))
        relay.delay = LATE
        times = []
        for number in range(1, 6):
            began = time.monotonic()
            say(client, number)
            times.append(time.monotonic() - began)
            assert awaited(lambda: at_rest(client))
    assert 2 * LATE <= min(times) < 3 * LATE, times
