"""Whatever happens to memory, a call goes on at once, names what is missing, and loses no words."""

import asyncio
import contextlib
import ctypes
import os
import resource
import secrets
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest

from proxy.memory.errors import StoreError
from proxy.memory.session import Entry
from proxy.memory.stores import sql
from tests.peers.fake_upstream import DONE, HEAD, ROLE, FakeUpstream, answer, chunk, completion, delta
from tests.peers.postgres_server import PostgresServer
from tests.peers.redis_server import LOOPBACK, RedisServer, caught_up, free_port, replicated, stopped
from tests.peers.relay import Relay
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import IMPATIENT as CONFIG
from tests.remembering import call, stored_entries, texts, user
from tests.serving_process import ServingProcess, children
from tests.tried import Tried

pytestmark = pytest.mark.faults
QUICK = 1.5
"""Seconds that a call has while memory fails: its deadline of 50 ms, and what a busy machine adds."""
BACK = 10.0
"""Seconds after which all is well again; pauses grow to two."""
TURNS = range(1, 4)
TRIES = 20
"""Turns of which one has memory at once, when memory is back; a busy machine may be late for the others."""
GOES_ON = "the answer at once, without memory; all turns held later"

Outage = Callable[[], AbstractContextManager[object]]


class Place:
    """A store for sessions, and its way to fail."""

    def __init__(self, url: str, failing: Outage) -> None:
        self.url = url
        self.failing = failing


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with contextlib.closing(PostgresServer()) as server:
        yield server


# --- Redis


@contextlib.contextmanager
def redis_killed(server: RedisServer) -> Iterator[None]:
    server.ask("SAVE")
    server.kill()
    yield
    server.start()


@contextlib.contextmanager
def redis_replica(server: RedisServer) -> Iterator[None]:
    """Of a master that is away: it is read-only, and keeps what it has."""
    server.ask("REPLICAOF", LOOPBACK, free_port())
    yield
    server.ask("REPLICAOF", "NO", "ONE")


@contextlib.contextmanager
def redis_full(server: RedisServer) -> Iterator[None]:
    server.ask("CONFIG", "SET", "maxmemory", 1)
    yield
    server.ask("CONFIG", "SET", "maxmemory", 0)


@contextlib.contextmanager
def redis_loading(server: RedisServer) -> Iterator[None]:
    for number in range(60):
        server.ask("SET", number, secrets.token_bytes(400_000))
    server.ask("SAVE")
    server.kill()
    config = server.folder / "redis.conf"
    config.write_text(config.read_text() + "key-load-delay 20000\n")
    server.start(wait=False)
    yield


REDIS: dict[str, Callable[[RedisServer], AbstractContextManager[None]]] = {
    "killed": redis_killed,
    "silent": stopped,
    "read-only": redis_replica,
    "full": redis_full,
    "loading": redis_loading,
}


@contextlib.contextmanager
def redis(failure: str, folder: Path) -> Iterator[Place]:
    with contextlib.closing(RedisServer(folder)) as server:
        yield Place(server.url, lambda: REDIS[failure](server))


@contextlib.contextmanager
def redis_behind(failure: str, folder: Path) -> Iterator[Place]:
    with contextlib.closing(RedisServer(folder)) as server, Relay(server.port) as relay:

        @contextlib.contextmanager
        def failing() -> Iterator[None]:
            relay.silent, relay.delay = failure == "black hole", 0.2 if failure == "slow" else 0.0
            yield
            relay.silent, relay.delay = False, 0.0

        yield Place(f"redis://{LOOPBACK}:{relay.port}", failing)


@contextlib.contextmanager
def redis_failing_over(_: str, folder: Path) -> Iterator[Place]:
    with replicated(folder) as (master, replica, sentinel):

        @contextlib.contextmanager
        def failing() -> Iterator[None]:
            caught_up(master, replica)
            master.kill()
            yield

        yield Place(f"redis+sentinel://{LOOPBACK}:{sentinel.port}/calls", failing)


# --- SQLite


@contextlib.contextmanager
def sqlite_locked(_: str, folder: Path) -> Iterator[Place]:
    path = folder / "locked.db"

    @contextlib.contextmanager
    def failing() -> Iterator[None]:
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("BEGIN EXCLUSIVE")
            yield

    yield Place(f"sqlite:{path}", failing)


# --- PostgreSQL


@contextlib.contextmanager
def postgres_killed(server: PostgresServer) -> Iterator[None]:
    server.stop()
    yield
    server.start()


@contextlib.contextmanager
def postgres_read_only(server: PostgresServer) -> Iterator[None]:
    """As a standby is."""
    server.ask("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
    yield
    # A session of its own may write whatever is the default.
    server.ask(
        "SET default_transaction_read_only = off",
        "ALTER SYSTEM RESET default_transaction_read_only",
        "SELECT pg_reload_conf()",
    )


# --- all of them


PLACES: dict[str, Callable[[str, Path], AbstractContextManager[Place]]] = {
    **{f"redis {name}": redis for name in REDIS},
    "redis black hole": redis_behind,
    "redis slow": redis_behind,
    "redis failing over": redis_failing_over,
    "sqlite locked": sqlite_locked,
}
POSTGRES: dict[str, Callable[[PostgresServer], AbstractContextManager[None]]] = {
    "killed": postgres_killed,
    "silent": PostgresServer.frozen,
    "read-only": postgres_read_only,
}


@pytest.fixture(params=[*PLACES, *(f"postgresql {name}" for name in POSTGRES)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    kind, _, failure = request.param.partition(" ")
    if kind == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.url(asyncio.run(server.new_schema()))
        yield Place(url, lambda: POSTGRES[failure](server))
    else:
        with PLACES[request.param](failure, tmp_path) as found:
            yield found


def quickly(proxy: ProxyServer, *messages: dict[str, Any], **fields: Any) -> Any:
    """The answer to a call, which is whole and does not wait for memory."""
    began = time.monotonic()
    got = call(proxy, *messages, **fields)
    assert time.monotonic() - began < QUICK
    assert got.status_code == 200
    assert "Hello" in got.text
    return got


def degraded(got: Any) -> bool:
    return "memory" in got.headers.get("x-turnkeeper-degraded", "")


def until(condition: Callable[[], bool], within: float = BACK) -> None:
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.05)


def status(client: httpx2.Client) -> Any:
    got = client.get("/readyz")
    assert got.status_code == 200
    return got.json()


READY = {"status": "ready", "degraded": []}
DEGRADED = {"status": "degraded", "degraded": ["memory"]}


def kept(proxy: ProxyServer, session: str = "s1") -> list[Entry]:
    """What memory holds; nothing where it takes longer than a call would wait, for whoever asks again."""
    with contextlib.suppress(StoreError):
        return stored_entries(proxy, session)
    return []


def once_each(proxy: ProxyServer, numbers: range) -> bool:
    """Whether every turn is held, with its answer, and none twice."""
    found = Counter((entry.role, entry.content) for entry in kept(proxy))
    expected = {("user", f"Question {n}.") for n in numbers}
    assert all(found[line] <= 1 for line in expected)
    return expected <= found.keys() and found["assistant", "Hello there."] == len(numbers)


def remembering_again(proxy: ProxyServer, first: int) -> int:
    """The number of the first turn from this one on that does not go without memory.

    One that a busy machine made late is held later, as any other, and the next is asked then.
    """
    for number in range(first, first + TRIES):
        if not degraded(quickly(proxy, user(f"Question {number}.", number))):
            return number
        until(lambda number=number: once_each(proxy, range(number + 1)))
    raise AssertionError("turns go without memory, though it is back")


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_call_goes_on_while_memory_fails(
    place: Place, serve: Serve, upstream: FakeUpstream, tried: Tried, request: pytest.FixtureRequest
) -> None:
    proxy = serve(CONFIG, MEMORY_URL=place.url)
    call(proxy, user("Question 0.", 0))
    until(lambda: once_each(proxy, range(1)))
    tasks, files = proxy.tasks(), open_files()
    with place.failing():
        answers = [quickly(proxy, user(f"Question {n}.", n), stream=n % 2 == 0) for n in TURNS]
        until(lambda: status(proxy.client) == DEGRADED, within=3)
        answers.append(quickly(proxy, user("Question 4.", 4)))
        assert degraded(answers[-1])
        assert proxy.client.get("/healthz").status_code == 200
    until(lambda: status(proxy.client) == READY and once_each(proxy, range(5)))
    asked = remembering_again(proxy, 5)
    shown = upstream.last.json["messages"]
    assert len(shown) == 2 * asked + 1, "all that was said before is shown to the model"
    assert proxy.app.memory is not None
    assert proxy.app.memory.recorder.lost_turns == 0
    # Two connections were made anew, and that of the turns kept for the page: here are the relay's ends, too.
    until(lambda: proxy.tasks() <= tasks + 1 and open_files() <= files + 3 * 3)
    tried(request.node.callspec.params["place"], GOES_ON)


@pytest.mark.parametrize("failure", ["nobody there", "black hole", "connecting hangs"])
def test_a_redis_that_was_never_there(
    serve: Serve, upstream: FakeUpstream, tmp_path: Path, tried: Tried, failure: str
) -> None:
    port = free_port()
    with contextlib.ExitStack() as exits:
        if failure != "nobody there":
            listener = exits.enter_context(socket.create_server((LOOPBACK, port), backlog=0))
            for _ in range(4 if failure == "connecting hangs" else 0):
                other = exits.enter_context(socket.socket())
                other.setblocking(False)  # noqa: FBT003
                other.connect_ex(listener.getsockname())
        proxy = serve(CONFIG, MEMORY_URL=f"redis://{LOOPBACK}:{port}")
        for n in range(3):
            assert degraded(quickly(proxy, user(f"Question {n}.", n)))
        until(lambda: status(proxy.client) == DEGRADED, within=3)
    with contextlib.closing(RedisServer(tmp_path, port=port)):
        until(lambda: status(proxy.client) == READY and once_each(proxy, range(3)))
    tried(f"redis from the start: {failure}", GOES_ON)


@pytest.fixture(params=["redis", "postgresql"])
def distant(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Relay]]:
    """A server that is 80 ms away for as long as its relay says so, and its address."""
    with contextlib.ExitStack() as exits:
        if request.param == "redis":
            server = exits.enter_context(contextlib.closing(RedisServer(tmp_path)))
            relay = exits.enter_context(Relay(server.port))
            url = f"redis://{LOOPBACK}:{relay.port}"
        else:
            postgres: PostgresServer = request.getfixturevalue("postgres")
            schema = asyncio.run(postgres.new_schema())
            relay = exits.enter_context(Relay(postgres.socket))
            url = f"postgresql://postgres@{LOOPBACK}:{relay.port}/postgres?search_path={schema}"
        relay.delay = 0.08
        yield url, relay


def test_a_place_that_is_always_slow_is_written_and_no_call_waits_for_it(
    distant: tuple[str, Relay], serve: Serve, upstream: FakeUpstream, tried: Tried, request: Any
) -> None:
    url, relay = distant
    proxy = serve(CONFIG, MEMORY_URL=url)
    for n in TURNS:
        assert degraded(quickly(proxy, user(f"Question {n}.", n)))
    until(lambda: once_each(proxy, TURNS))
    assert status(proxy.client) == DEGRADED
    assert degraded(quickly(proxy, user("Question 4.", 4)))
    relay.delay = 0
    until(lambda: status(proxy.client) == READY and once_each(proxy, range(1, 5)))
    asked = remembering_again(proxy, 5)
    assert len(upstream.last.json["messages"]) == 2 * asked - 1
    tried(f"{request.node.callspec.params['distant']} 80 ms away", GOES_ON)


def test_a_redis_killed_amid_a_streamed_answer_costs_that_answer_nothing(
    serve: Serve, upstream: FakeUpstream, tmp_path: Path, tried: Tried
) -> None:
    with contextlib.closing(RedisServer(tmp_path)) as server:
        proxy = serve(CONFIG, MEMORY_URL=server.url)
        call(proxy, user("Question 0.", 0))
        until(lambda: once_each(proxy, range(1)))
        server.ask("SAVE")
        words = [delta(content=word) for word in ("Hello", " ", "there.")]
        pieces = [ROLE, *words, delta(finish="stop"), DONE]
        upstream.says(HEAD, *[step for piece in pieces for step in (chunk(piece), 0.05)], b"0\r\n\r\n")
        path, headers = "/v1/chat/completions", {"X-Session-Id": "s1"}
        body = {"model": "m", "stream": True, "messages": [user("Question 1.", 1)]}
        got, arrived = b"", []
        with proxy.client.stream("POST", path, json=body, headers=headers) as reply:
            for data in reply.iter_raw():
                if not got:
                    server.kill()
                got += data
                arrived.append(time.monotonic())
        assert got == b"".join(pieces)
        assert max(b - a for a, b in pairwise(arrived)) < QUICK
        server.start()
        upstream.says(*answer(completion()))
        until(lambda: once_each(proxy, range(2)))
    tried("redis killed amid a stream", "the answer, whole and in time; held later")


def test_a_thousand_turns_wait_for_a_redis_and_are_all_written(
    serve: Serve, upstream: FakeUpstream, tmp_path: Path, tried: Tried
) -> None:
    with contextlib.closing(RedisServer(tmp_path)) as server:
        proxy = serve(CONFIG, MEMORY_URL=server.url)
        call(proxy, user("Hi"))
        with stopped(server):
            for n in range(1000):
                call(proxy, user(f"Question {n % 10}.", n % 10), session=f"s{n // 10}")
        recorder = proxy.app.memory.recorder  # type: ignore[union-attr]
        until(lambda: not recorder.pending, within=20)
        assert recorder.lost_turns == 0
        for session in ("s7", "s50", "s99"):
            expected = [("user", f"Question {n}.") for n in range(10)]
            until(lambda s=session, e=expected: texts(kept(proxy, s))[::2] == e)
    tried("redis silent for a thousand turns", "all are written later")


def test_a_redis_that_comes_and_goes_leaves_the_server_as_it_was(
    upstream: FakeUpstream, tmp_path: Path, tried: Tried
) -> None:
    config = f'listen: {{port: "${{PORT}}"}}\nlog: {{level: error}}\n{CONFIG}'
    with (
        contextlib.closing(RedisServer(tmp_path, "appendonly yes")) as server,
        ServingProcess(tmp_path, config, UPSTREAM_BASE_URL=upstream.url, MEMORY_URL=server.url) as serving,
    ):

        def outages(count: int) -> None:
            for _ in range(count):
                server.kill()
                for each in range(40):
                    body = {"model": "m", "messages": [user("Hi", 0)]}
                    headers = {"X-Session-Id": f"s{each}"}
                    got = serving.client.post("/v1/chat/completions", json=body, headers=headers)
                    assert got.status_code == 200
                server.start()
                until(lambda: status(serving.client) == READY)

        outages(3)  # what is opened once and kept is no leak
        files, megabytes = serving.open_files(), serving.megabytes()
        outages(6)
        # Forty sessions written at once may open as many connections, which are kept for the next time.
        until(lambda: serving.open_files() <= files + 40)
        grown = serving.megabytes() - megabytes
        assert grown < 8, f"{grown:.1f} MB"
        assert len(serving.client.get("/v1/memory/sessions?limit=100").json()["data"]) == 40
    tried("redis killed nine times", "no file and no memory is left, all turns held")


# --- files that cannot be used from the start


@contextlib.contextmanager
def corrupt(path: Path) -> Iterator[None]:
    path.write_bytes(b"SQLite format 3\0" + secrets.token_bytes(20_000))
    yield
    path.unlink()


@contextlib.contextmanager
def newer(path: Path) -> Iterator[None]:
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute(sql.LEDGER_TABLE)
        other.execute(f"INSERT INTO {sql.LEDGER} VALUES ('m900_the_future')")
        other.commit()
    yield
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute(f"DELETE FROM {sql.LEDGER}")
        other.commit()


@contextlib.contextmanager
def without_folder(path: Path) -> Iterator[None]:
    path.parent.rmdir()
    yield
    path.parent.mkdir()


@pytest.mark.parametrize("fault", [corrupt, newer, without_folder])
def test_a_file_that_cannot_be_used(
    serve: Serve, tmp_path: Path, tried: Tried, fault: Callable[[Path], AbstractContextManager[None]]
) -> None:
    path = tmp_path / "folder" / "sessions.db"
    path.parent.mkdir()
    with fault(path):
        proxy = serve(CONFIG, MEMORY_URL=f"sqlite:{path}")
        for n in range(3):
            assert degraded(quickly(proxy, user(f"Question {n}.", n)))
        until(lambda: status(proxy.client) == DEGRADED, within=3)
    until(lambda: status(proxy.client) == READY and once_each(proxy, range(3)))
    tried(f"sqlite {fault.__name__.replace('_', ' ')}", GOES_ON)


# --- a process of its own, under limits of its own


class Process:
    """``serve`` as users run it, on a port that was free."""

    def __init__(self, folder: Path, upstream: FakeUpstream, url: str, **options: Any) -> None:
        self.port = free_port()
        config = folder / "process.yaml"
        config.write_text(f"listen: {{port: {self.port}}}\n{CONFIG}")
        environ = {**os.environ, "MEMORY_URL": url, "UPSTREAM_BASE_URL": upstream.url}
        command = [sys.executable, "-m", "proxy", "serve", str(config)]
        self.process = subprocess.Popen(command, env=environ, **options)
        self.client = httpx2.Client(base_url=f"http://{LOOPBACK}:{self.port}", timeout=10, verify=False)
        until(self._answers, within=30)

    def _answers(self) -> bool:
        with contextlib.suppress(httpx2.TransportError):
            return self.client.get("/healthz").status_code == 200
        return False

    def ask(self, *messages: dict[str, Any], session: str = "s1") -> Any:
        began = time.monotonic()
        body = {"model": "m", "messages": list(messages)}
        got = self.client.post("/v1/chat/completions", json=body, headers={"X-Session-Id": session})
        assert time.monotonic() - began < QUICK
        assert got.status_code == 200
        return got

    def close(self) -> None:
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()


LIMIT = 300_000
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, resource.RLIM_INFINITY))


def obedient() -> None:
    """What is started next obeys the rights of files, though it may be root's."""
    if os.geteuid() == 0:
        for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere root writes to any folder")
@pytest.mark.parametrize("there", [False, True])
def test_a_folder_and_a_file_that_may_not_be_written(
    upstream: FakeUpstream, tmp_path: Path, tried: Tried, there: bool
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    url = f"sqlite:{folder / 'sessions.db'}"
    if there:
        with contextlib.closing(Process(tmp_path, upstream, url)) as proxy:
            proxy.ask(user("Before.", 0), session="before")
    for path in [*folder.iterdir(), folder]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    with contextlib.closing(Process(tmp_path, upstream, url, preexec_fn=obedient)) as proxy:
        until(lambda: degraded(proxy.ask(user("Question 0.", 0))), within=3)
        until(lambda: status(proxy.client) == DEGRADED, within=3)
        for path in [folder, *folder.iterdir()]:
            path.chmod(0o700)
        until(lambda: status(proxy.client) == READY)
        until(lambda: texts_of(proxy, "s1") == ["Question 0.", "Hello there."])
        assert texts_of(proxy, "before") == (["Before.", "Hello there."] if there else [])
    tried(f"sqlite in a read-only folder{', read-only itself' if there else ''}", GOES_ON)


def texts_of(proxy: "Process", session: str) -> list[str]:
    got = proxy.client.get(f"/v1/memory/sessions/{session}").json()
    return [entry["content"] for entry in got.get("contents", [])]


def test_a_file_that_has_reached_its_limit(upstream: FakeUpstream, tmp_path: Path, tried: Tried) -> None:
    url = f"sqlite:{tmp_path / 'full.db'}"
    with contextlib.closing(Process(tmp_path, upstream, url, preexec_fn=limited)) as proxy:
        names = [f"s{n}" for n in range(30)]
        for name in names:
            proxy.ask(user(f"{name} " + "x" * 30_000, 0), session=name)
        until(lambda: status(proxy.client) == DEGRADED, within=5)
        assert any(degraded(proxy.ask(user("And then?", 1), session=name)) for name in names)
        for pid in children(proxy.process.pid):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (-1, -1))
        until(lambda: status(proxy.client) == READY, within=15)
        listed = proxy.client.get("/v1/memory/sessions?limit=100").json()["data"]
        assert {line["id"] for line in listed} == set(names)
    tried("sqlite at a limit of its file's size", GOES_ON)
