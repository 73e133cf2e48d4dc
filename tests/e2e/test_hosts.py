"""Hosts that share one store behave as one, whichever of them a request meets."""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import product
from pathlib import Path
from typing import Final

import httpx2
import pytest

from tests import preloaded
from tests.e2e.conftest import Address
from tests.e2e.test_clocks import ASIDE
from tests.peers import redis_server
from tests.peers.fake_upstream import HANG, FakeUpstream, Received, Step, by_default
from tests.serving_process import ServingProcess, at_rest
from tests.waiting import awaited, until

CONFIG: Final = """
listen: {port: "${PORT}", drain: 10ms}
memory: {sessions: "${MEMORY_URL}", deadline: 1s, archive: {keep: "off"}}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", model: one}}
pipelines: {default: {upstreams: [main], request: []}}
"""
SUPERSEDED: Final = "superseded"
CALLS: Final = 100

Hosts = Callable[..., list[ServingProcess]]


@pytest.fixture
def start(tmp_path: Path, upstream: FakeUpstream) -> Iterator[Hosts]:
    """Starts servers with processes of their own on the store at an address."""
    with ExitStack() as started:

        def begin(url: str, count: int = 2, config: str = CONFIG, *options: str) -> list[ServingProcess]:
            environ = {"MEMORY_URL": url, "UPSTREAM_BASE_URL": upstream.url, "TMPDIR": str(tmp_path)}
            hosts = []
            for number in range(count):
                folder = tmp_path / f"host-{number}-{len(list(tmp_path.iterdir()))}"
                folder.mkdir()
                hosts.append(started.enter_context(ServingProcess(folder, config, *options, **environ)))
            return hosts

        yield begin


@pytest.fixture(params=["redis", "redis+cluster", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with ExitStack() as started:
        if request.param == "redis":
            yield started.enter_context(redis_server.single(tmp_path)).url
        elif request.param == "redis+cluster":
            first = started.enter_context(redis_server.cluster(tmp_path))[0]
            yield f"redis+cluster://127.0.0.1:{first.port}"
        else:
            address: Address = request.getfixturevalue("address")
            yield address(request.param)


def holding(request: Received) -> Iterable[Step]:
    """The model never answers what ends in the word that is cut off."""
    if request.method == "POST" and request.json["messages"][-1]["content"].endswith("Tell"):
        return [HANG]
    return by_default(request)


class Speculation:
    """Pairs of requests for one turn, each at another host, of which the first is not answered."""

    def __init__(self, hosts: list[ServingProcess], upstream: FakeUpstream, pool: ThreadPoolExecutor) -> None:
        self._hosts = hosts
        self._upstream = upstream
        self._pool = pool
        upstream.script = holding

    def begin(self, session: str, host: int) -> "Future[httpx2.Response]":
        """Returns once the model was asked."""
        older = self._pool.submit(self._hosts[host].chat, f"{session}. Tell", session)
        awaited(lambda: self.asked(f"{session}. Tell"))
        return older

    def asked(self, text: str) -> list[Received]:
        posted = [each for each in self._upstream.requests if each.method == "POST"]
        return [each for each in posted if each.json["messages"][-1]["content"] == text]

    def supersede(self, session: str, host: int) -> tuple[httpx2.Response, float]:
        """The answer to the newer request, and when it was sent."""
        at = time.monotonic()
        return self._hosts[host].chat(f"{session}. Tell me", session), at

    def delay(self, session: str, since: float) -> float:
        """After how long the older's model was let go."""
        (older,) = self.asked(f"{session}. Tell")
        assert older.closed.wait(5)
        return older.closed_at - since


def code(response: httpx2.Response) -> str:
    return str(json.loads(response.content)["error"]["code"])


def warm(speculation: Speculation) -> None:
    """Returns once the hosts hear each other."""

    def hears(host: int) -> bool:
        session = f"warm-{host}-{time.monotonic_ns()}"
        older = speculation.begin(session, host)
        speculation.supersede(session, 1 - host)
        return until(older.done, 1)

    assert until(lambda: hears(0), 20)
    assert until(lambda: hears(1), 20)


def test_the_newer_request_cancels_the_older_at_another_host(
    start: Hosts, upstream: FakeUpstream, url: str
) -> None:
    with ThreadPoolExecutor(CALLS) as pool:
        speculation = Speculation(start(url), upstream, pool)
        warm(speculation)
        delays, codes, statuses = [], [], []
        for number in range(CALLS):
            session = f"call {number}"
            older = speculation.begin(session, number % 2)
            newer, since = speculation.supersede(session, 1 - number % 2)
            delays.append(speculation.delay(session, since))
            codes.append(code(older.result(5)))
            statuses.append(newer.status_code)
        delays.sort()
        assert (codes, statuses) == ([SUPERSEDED] * CALLS, [200] * CALLS)
        assert delays[CALLS // 10] < 0.05, "what a busy machine adds is left out"


def test_a_host_that_comes_later_cancels_what_is_under_way(
    start: Hosts, upstream: FakeUpstream, url: str
) -> None:
    with ThreadPoolExecutor() as pool:
        hosts = start(url, 1)
        speculation = Speculation(hosts, upstream, pool)
        older = speculation.begin("call", 0)
        hosts += start(url, 1)
        newer, _ = speculation.supersede("call", 1)
        assert (newer.status_code, code(older.result(5))) == (200, SUPERSEDED)
        # And the other way round.
        older = speculation.begin("another call", 1)
        newer, _ = speculation.supersede("another call", 0)
        assert (newer.status_code, code(older.result(5))) == (200, SUPERSEDED)


def shown(host: ServingProcess, seconds: float = 0.5) -> str:
    """What the feed of a host shows of the turns that went by."""
    text = ""
    with suppress(httpx2.ReadTimeout), httpx2.stream("GET", f"{host.root}/v1/turns", timeout=seconds) as got:
        for part in got.iter_text():
            text += part
    return text


def test_what_is_forgotten_at_one_host_is_shown_at_none(start: Hosts, url: str) -> None:
    here, there = start(url)
    for path in ("sessions/s-gone", "users/ann"):
        for host in (here, there):
            assert host.chat("Hello", "s-gone", user="ann").status_code == 200
            assert until(lambda host=host: "s-gone" in shown(host))
        assert here.client.delete(f"/v1/memory/{path}").status_code in {200, 204}
        for host in (here, there):
            assert until(lambda host=host: "s-gone" not in shown(host))


@pytest.mark.parametrize("what", [("--session", "s-gone"), ("ann",)])
def test_what_a_terminal_forgets_is_shown_at_no_host(start: Hosts, url: str, what: tuple[str, ...]) -> None:
    hosts = start(url)
    for host in hosts:
        assert host.chat("Hello", "s-gone", user="ann").status_code == 200
        assert until(lambda host=host: "s-gone" in shown(host))
    environ = {**os.environ, "MEMORY_URL": url, "UPSTREAM_BASE_URL": "practice:", "PORT": "0"}
    path = hosts[0].path
    done = preloaded.run("forget", *what, "--config", str(path), folder=path.parent, env=environ)
    assert (done.returncode, done.stderr) == (0, "")
    for host in hosts:
        assert until(lambda host=host: "s-gone" not in shown(host))


def test_turns_of_all_hosts_are_shown_as_they_go_by(start: Hosts, url: str) -> None:
    here, there = start(url)
    with httpx2.stream("GET", f"{here.root}/v1/turns", timeout=10) as feed:
        lines = feed.iter_lines()

        def is_shown(session: str) -> bool:
            there.chat("Hello", session)
            here.chat("Hello", f"own {session}")
            return session in next(line for line in lines if f'{session}"' in line and '"done"' in line)

        found = awaited(lambda: is_shown(f"s{time.monotonic_ns()}"))
        assert found


def test_a_new_configuration_is_read_by_all_hosts_that_have_one(start: Hosts, url: str) -> None:
    hosts = start(url, 3)
    here, there, unchanged = hosts
    for host in (here, there):
        host.path.write_text(
            CONFIG.replace("{default:", "{other: {upstreams: [main], request: []}, default:")
        )

    def is_there(host: ServingProcess) -> bool:
        return "other" in host.client.get("/pipelines/none/v1/models").text

    def spread() -> bool:
        here.hang_up()
        return until(lambda: is_there(here) and is_there(there), 2)

    assert until(spread, 20)
    assert "was read again" not in unchanged.log


def test_superseding_goes_on_after_a_failover(start: Hosts, upstream: FakeUpstream, tmp_path: Path) -> None:
    with redis_server.replicated(tmp_path) as (master, replica, sentinel), ThreadPoolExecutor() as pool:
        hosts = start(f"redis+sentinel://127.0.0.1:{sentinel.port}/calls")
        speculation = Speculation(hosts, upstream, pool)
        warm(speculation)
        older = speculation.begin("failing over", 0)
        redis_server.caught_up(master, replica)
        master.kill()
        newer, _ = speculation.supersede("failing over", 1)
        assert newer.status_code == 200
        assert not older.done()
        service = "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "calls"
        redis_server.wait_until(lambda: int(sentinel.ask(*service)[1]) == replica.port)
        at = time.monotonic()
        assert code(older.result(5)) == SUPERSEDED
        # A host joins its channel again after a pause, which grows to a second.
        assert speculation.delay("failing over", at) < 3


def test_superseding_outlives_lost_connections(start: Hosts, upstream: FakeUpstream, tmp_path: Path) -> None:
    with redis_server.single(tmp_path) as server, ThreadPoolExecutor() as pool:
        speculation = Speculation(start(server.url), upstream, pool)
        warm(speculation)
        for number in range(10):
            older = speculation.begin(f"call {number}", number % 2)
            for kind in ("normal", "pubsub"):
                server.ask("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
            newer, _ = speculation.supersede(f"call {number}", 1 - number % 2)
            assert newer.status_code == 200
            assert code(older.result(5)) == SUPERSEDED


LIMITED = (
    CONFIG
    + """
keys: "acme:one"
limits: {url: "${LIMITS_URL:-}", concurrent_streams: 4, requests_per_minute: 1000}
"""
)
ACME = {"Authorization": "Bearer one"}
shared_counts = pytest.mark.parametrize("url", ["redis", "redis+cluster"], indirect=True)


def streams(
    hosts: list[ServingProcess], pool: ThreadPoolExecutor, each: int
) -> "list[Future[httpx2.Response]]":
    """Calls that stay open, the same number at each host."""

    def stay(host: ServingProcess) -> httpx2.Response:
        body = {"model": "m", "messages": [{"role": "user", "content": "Tell"}]}
        return httpx2.post(f"{host.root}/v1/chat/completions", json=body, headers=ACME, timeout=100)

    return [pool.submit(stay, host) for host in hosts for _ in range(each)]


def admitted(host: ServingProcess) -> bool:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    status = host.client.post("/v1/chat/completions", json=body, headers=ACME).status_code
    assert status in {200, 429}
    return status == 200


@pytest.mark.long
@shared_counts
def test_streams_are_bounded_over_all_hosts_and_those_of_a_dead_one_are_free_again(
    start: Hosts, upstream: FakeUpstream, url: str
) -> None:
    with ThreadPoolExecutor(16) as pool:
        hosts = start(url, 3, LIMITED)
        calls = bounded(hosts, upstream, pool)
        time.sleep(50)  # longer than a lease: those of the living are renewed
        assert not any(map(admitted, hosts))
        open_calls = [sum(not each.done() for each in calls[4 * i : 4 * i + 4]) for i in range(3)]
        dead = max(range(3), key=open_calls.__getitem__)
        at = time.monotonic()
        hosts[dead].kill()
        left = [host for host in hosts if host is not hosts[dead]]
        assert until(lambda: admitted(left[0]), 60)
        assert time.monotonic() - at < 60
        more = streams(left[:1], pool, 4)
        assert until(lambda: len([each for each in more if each.done()]) == 4 - open_calls[dead])
        assert not any(map(admitted, left))
        for host in left:
            host.kill()


def bounded(
    hosts: list[ServingProcess], upstream: FakeUpstream, pool: ThreadPoolExecutor
) -> "list[Future[httpx2.Response]]":
    """Four calls at each host, of which four are let in."""
    upstream.script = holding
    calls = streams(hosts, pool, 4)
    refused = 4 * len(hosts) - 4
    assert until(lambda: len([each for each in calls if each.done()]) == refused)
    assert [each.result().status_code for each in calls if each.done()] == [429] * refused
    assert until(lambda: len([each for each in upstream.requests if each.method == "POST"]) == 4)
    assert not any(map(admitted, hosts))
    return calls


@shared_counts
def test_streams_are_bounded_over_all_hosts(start: Hosts, upstream: FakeUpstream, url: str) -> None:
    with ThreadPoolExecutor(16) as pool:
        hosts = start(url, 2, LIMITED)
        bounded(hosts, upstream, pool)
        for host in hosts:
            host.kill()


def test_limits_are_counted_where_the_sessions_are_not(
    start: Hosts, upstream: FakeUpstream, address: Address, tmp_path: Path
) -> None:
    config = LIMITED.replace("requests_per_minute: 1000", "requests_per_minute: 30")
    config = config.replace("${LIMITS_URL:-}", address("redis"))
    hosts = start(address("postgresql"), 2, config)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(admitted, hosts * 30))
    assert sum(found) == 30
    assert not any("'limits'" in host.log for host in hosts)


def test_a_server_says_that_it_counts_alone(start: Hosts, address: Address) -> None:
    (host,) = start(address("postgresql"), 1, LIMITED)
    assert "each server counts 'limits' for itself; name one in limits.url (LIMITS_URL)" in host.log


def test_a_redis_whose_name_does_not_resolve_is_told_of_once_and_no_exception_is_left(start: Hosts) -> None:
    url = "redis://no-such-host.invalid:6379"
    hosts = [*start(url, 1, LIMITED), *start(url, 1, LIMITED, "--workers", "2")]
    for host in hosts * 3:
        host.client.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}]}, headers=ACME
        )
    time.sleep(8)  # names are looked up again all the while
    for host in hosts:
        assert host.stop() == 0
        assert "never retrieved" not in host.log
        assert "Traceback" not in host.log


def test_a_host_that_is_cut_off_is_not_ready_where_memory_is_required(start: Hosts, tmp_path: Path) -> None:
    with redis_server.single(tmp_path) as server:
        (host,) = start(server.url, 1)
        assert host.client.get("/readyz?require=memory").status_code == 200
        assert host.client.get("/readyz?strict=1").status_code == 200
        with redis_server.stopped(server):
            required = "/readyz?require=limits,memory"
            assert until(lambda: host.client.get(required).status_code == 503, 30)
            found = host.client.get("/readyz")
            assert (found.status_code, found.json()["degraded"]) == (200, ["memory"])
            assert host.client.get("/readyz?strict=1").status_code == 503
            assert host.client.get("/readyz?strict=0").status_code == 200
            assert host.client.get("/readyz?require=limits").status_code == 200
        assert until(lambda: host.client.get("/readyz?require=memory").status_code == 200, 30)


SKEWED = "clock is {} s off that of the sessions' store"


@pytest.mark.parametrize("kind", ["redis", "postgresql"])
def test_a_clock_that_is_not_the_store_s_is_measured_and_told_of(
    start: Hosts, address: Address, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = address(kind)
    (right,) = start(at, 1)
    original = ServingProcess.start

    def ahead(host: ServingProcess) -> None:
        host.command[:3] = [sys.executable, "-c", ASIDE.format(skew=3600)]
        original(host)

    monkeypatch.setattr(ServingProcess, "start", ahead)
    (skewed,) = start(at, 1, CONFIG, "--workers", "2")

    def skew(host: ServingProcess) -> float | None:
        found = re.search(
            r"^turnkeeper_clock_skew_seconds (\S+)$", host.client.get("/metrics").text, re.MULTILINE
        )
        return float(found[1]) if found else None

    assert awaited(lambda: skew(skewed), 20) == pytest.approx(3600, abs=0.2)
    assert abs(awaited(lambda: skew(right), 20) or 0) < 0.2
    assert until(lambda: SKEWED.format("+3600.0") in skewed.log)
    assert "clock" not in right.log


@pytest.fixture
def apart(start: Hosts, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float], list[ServingProcess]]:
    """Starts three hosts on a store whose clocks are so many seconds apart."""
    original, config = ServingProcess.start, CONFIG.replace("request: []", "request: [restore_history]")

    def begin(url: str, seconds: float) -> list[ServingProcess]:
        skews = iter((-seconds, 0, seconds))

        def aside(host: ServingProcess) -> None:
            host.command[:3] = [sys.executable, "-c", ASIDE.format(skew=next(skews))]
            original(host)

        monkeypatch.setattr(ServingProcess, "start", aside)
        return start(url, 3, config)

    return begin


def slow(request: Received) -> Iterable[Step]:
    """The model takes its time over what it is asked to."""
    pause = request.json["messages"][-1]["content"] == "Slowly."
    return [0.5, *by_default(request)] if pause else by_default(request)


def texts(host: ServingProcess, session: str) -> list[str]:
    """What a host shows of a session."""
    found = host.client.get(f"/v1/memory/sessions/{session}")
    return [each["content"] for each in found.json()["contents"]] if found.status_code == 200 else []


@pytest.mark.parametrize("seconds", [3, 3600])
@pytest.mark.parametrize("kind", ["redis", "postgresql"])
def test_hosts_whose_clocks_are_apart_lose_no_turn_and_honour_deletions_in_every_order(
    apart: Callable[[str, float], list[ServingProcess]],
    upstream: FakeUpstream,
    address: Address,
    kind: str,
    seconds: float,
) -> None:
    hosts = apart(address(kind), seconds)
    upstream.script = slow
    said = "Hello there."
    with ThreadPoolExecutor() as pool:
        for number, (first, deleting, last) in enumerate(product(hosts, hosts, hosts)):
            session = f"call-{number}"
            for turn, host in (("One.", first), ("Two.", last)):
                assert host.chat(turn, session).status_code == 200
                assert until(lambda host=host, turn=turn, session=session: turn in texts(host, session))
            assert texts(deleting, session) == ["One.", said, "Two.", said]
            before, under_way = len(upstream.requests), pool.submit(last.chat, "Slowly.", session)
            assert until(lambda before=before: len(upstream.requests) > before)
            assert deleting.client.delete(f"/v1/memory/sessions/{session}").status_code in {200, 204}
            assert under_way.result(10).status_code == 200
            assert until(lambda host=last: at_rest(host.client))
            assert [texts(host, session) for host in hosts] == [[]] * 3
            assert last.chat("Anew.", session).status_code == 200
            assert [each["content"] for each in upstream.last.json["messages"]] == ["Anew."]
            assert until(lambda host=first, session=session: "Anew." in texts(host, session))
            assert [texts(host, session) for host in hosts] == [["Anew.", said]] * 3
