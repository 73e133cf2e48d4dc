"""What no caller waits for is done by a process of its own, and nothing is lost with it."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.peers.fake_upstream import FakeUpstream, Received, Step, answer, completion
from tests.peers.postgres_server import PostgresServer
from tests.peers.redis_server import RedisServer
from tests.serving_process import LISTEN, ServingProcess, at_rest, niceness
from tests.waiting import awaited, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own view of it is read")

CONFIG = (
    LISTEN
    + """
memory:
  sessions: "${MEMORY_URL}"
  archive: {url: "${ARCHIVE_URL:-}"}
  window: {max_messages: 10, keep_messages: 4}
  summaries: {upstream: main, model: notes}
  work: ${WORK:-true}
traces: {keep: 10, content: true}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", model: one}}
pipelines: {default: {upstreams: [main], request: [restore_history, inject_summaries]}}
"""
)
BUSY = 5.0
"""Seconds that a busy machine may take for what is done at once."""
NOTES = "Turns 0 to 4 are about a wheelbarrow."
ARCHIVED = "SELECT count(*) FROM turnkeeper_turns"
COMPARISONS = "SELECT mark FROM turnkeeper_talks WHERE created = 0"
SHARING = """
import os, signal, sys
from contextlib import asynccontextmanager
from pathlib import Path
from proxy.server import background
from proxy.settings.build import build_runtime
from proxy.settings.load import load

@asynccontextmanager
async def working(_):
    print(sys.getswitchinterval())
    os.kill(os.getpid(), signal.SIGTERM)
    yield

settings = load(Path(sys.argv[1]), os.environ)
background.run((settings, build_runtime(settings, os.environ)), lambda: None, working)
"""
"""Tells for how long a thread of the background that computes lets others wait."""
Start = Callable[..., ServingProcess]


@pytest.fixture
def start(tmp_path: Path, upstream: FakeUpstream) -> Iterator[Start]:
    started: list[ServingProcess] = []

    def begin(*options: str, config: str = CONFIG, **environ: str) -> ServingProcess:
        own = {"UPSTREAM_BASE_URL": upstream.url, "MEMORY_URL": f"sqlite:{tmp_path / 'memory.db'}"}
        started.append(ServingProcess(tmp_path, config, *options, **{**own, **environ}).__enter__())
        return started[-1]

    yield begin
    for each in started:
        each.__exit__()


def say(serving: ServingProcess, turns: range, session: str = "call", **fields: Any) -> None:
    for turn in turns:
        got = serving.chat(f"Turn {turn} about a wheelbarrow", session, turn_id=turn, user="ann", **fields)
        assert got.status_code == 200
        assert until(lambda: at_rest(serving.client))


def results(serving: ServingProcess) -> list[Any]:
    query = {"user": "ann", "query": "wheelbarrow"}
    return list(serving.client.post("/v1/memory/search", json=query).json().get("results", []))


def summaries(serving: ServingProcess, session: str = "call") -> list[str]:
    with suppress(httpx2.TransportError):
        got = httpx2.get(f"{serving.root}/v1/memory/sessions/{session}/summaries")
        return [one["text"] for one in got.json()["data"]] if got.status_code == 200 else []
    return []


def noting(request: Received) -> list[Step]:
    return answer(completion(NOTES if request.json["model"] == "notes" else "Yes."))


def stored(folder: Path) -> set[str]:
    """The sessions that the file has."""
    with closing(sqlite3.connect(folder / "memory.db")) as database:
        return {
            bytes(name).decode() for (name,) in database.execute("SELECT session FROM turnkeeper_sessions")
        }


def background(serving: ServingProcess) -> int:
    pid = awaited(lambda: serving.background)
    assert pid is not None
    return pid


def stop_between_writes(pid: int, file: Path) -> None:
    """Stops a process while it does not have the memory file locked: it would keep the lock."""

    def stopped() -> bool:
        os.kill(pid, signal.SIGSTOP)
        try:
            with closing(sqlite3.connect(file, isolation_level=None, timeout=0.5)) as database:
                database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            os.kill(pid, signal.SIGCONT)
            return False
        return True

    assert until(stopped, 30)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def stores(
    request: pytest.FixtureRequest, tmp_path: Path, postgres: PostgresServer
) -> Iterator[dict[str, str]]:
    if request.param == "sqlite":
        yield {"MEMORY_URL": f"sqlite:{tmp_path / 'memory.db'}"}
    elif request.param == "postgres":
        yield {"MEMORY_URL": postgres.url(asyncio.run(postgres.new_schema()))}
    else:
        with closing(RedisServer(tmp_path)) as redis:
            yield {"MEMORY_URL": redis.url, "ARCHIVE_URL": f"sqlite:{tmp_path / 'archive.db'}"}


def test_archive_and_summaries_are_written_by_a_nice_process(
    start: Start, upstream: FakeUpstream, stores: dict[str, str]
) -> None:
    upstream.script = noting
    serving = start(**stores)
    pid = background(serving)
    assert niceness(pid) == niceness(serving.process.pid) + 15
    assert os.sched_getscheduler(pid) == os.SCHED_BATCH
    say(serving, range(7))
    assert awaited(lambda: summaries(serving)) == [NOTES]
    assert awaited(lambda: results(serving))
    assert background(serving) == pid
    assert "ERROR" not in serving.log
    assert "WARNING" not in serving.log


def test_what_computes_leaves_the_writer_the_interpreter_at_once(tmp_path: Path) -> None:
    """It has the file locked meanwhile, which each of its forty statements would do for Python's 5 ms."""
    config = tmp_path / "turnkeeper.yaml"
    config.write_text(CONFIG)
    url = f"sqlite:{tmp_path / 'memory.db'}"
    environ = {**os.environ, "MEMORY_URL": url, "UPSTREAM_BASE_URL": "http://127.0.0.1:9", "PORT": "9"}
    command = [sys.executable, "-c", SHARING, config]
    shared = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert float(shared.stdout) <= 0.0001


@pytest.mark.parametrize("options", [[], ["--workers", "2"]])
def test_the_background_process_is_started_again_and_nothing_is_lost_with_it(
    start: Start, upstream: FakeUpstream, tmp_path: Path, options: list[str]
) -> None:
    upstream.script = noting
    serving = start(*options)
    pid = background(serving)
    stop_between_writes(pid, tmp_path / "memory.db")  # it learns of nothing any more
    say(serving, range(7))
    assert not results(serving)
    os.kill(pid, signal.SIGKILL)
    assert awaited(lambda: results(serving), 10)
    assert awaited(lambda: summaries(serving), 10) == [NOTES]
    assert background(serving) != pid
    assert f"The background process (pid {pid}) has ended; it is started again" in serving.log
    assert {each.status_code for each in [serving.chat() for _ in range(4)]} == {200}


@pytest.mark.parametrize("options", [[], ["--workers", "2"]])
def test_what_a_server_wrote_just_before_it_was_killed_is_archived(
    start: Start, tmp_path: Path, options: list[str]
) -> None:
    serving = start(*options)
    pid = background(serving)
    for attempt in range(2):  # once, the name of the session may be on its way already
        say(serving, range(1), session := f"killed{attempt}")
        assert until(lambda: session in stored(tmp_path))
        for member in serving.members:
            os.kill(member, signal.SIGKILL)
        assert until(serving.is_up)
        assert awaited(lambda: session in [one["session_id"] for one in results(serving)], 60)
    assert background(serving) == pid


def test_the_end_archives_what_was_said_last(start: Start, tmp_path: Path) -> None:
    serving = start()
    pid = background(serving)
    assert serving.chat("I have a wheelbarrow", "last", user="ann").status_code == 200
    began = time.monotonic()
    assert serving.stop() == 0
    assert time.monotonic() - began < 5
    assert not is_alive(pid)
    with closing(sqlite3.connect(tmp_path / "memory.db")) as database:
        assert database.execute(ARCHIVED).fetchone() == (2,)


@pytest.mark.parametrize("options", [[], ["--workers", "2"]])
def test_without_its_parent_every_process_ends_and_the_port_is_free(start: Start, options: list[str]) -> None:
    serving = start(*options)
    assert until(lambda: len(serving.members) == len(options) or 1)
    pids = [background(serving), *serving.members]
    serving.client.close()
    serving.process.kill()
    serving.process.wait()
    assert until(lambda: not any(map(is_alive, pids)))
    serving.start()


def test_sessions_of_one_process_alone_are_worked_on_there(start: Start, upstream: FakeUpstream) -> None:
    upstream.script = noting
    serving = start(MEMORY_URL="memory:")
    assert "in the server's own process (memory:), and so is background work" in serving.log
    say(serving, range(7))
    assert awaited(lambda: summaries(serving)) == [NOTES]
    assert serving.background is None


def test_without_work_the_archive_alone_is_written(start: Start, upstream: FakeUpstream) -> None:
    upstream.script = noting
    serving = start(WORK="false")
    background(serving)
    say(serving, range(7))
    assert awaited(lambda: results(serving))
    assert summaries(serving) == []
    assert not [one for one in upstream.requests if one.json["model"] == "notes"]
    assert "turnkeeper_background_failing" not in serving.client.get("/metrics").text


@pytest.mark.parametrize("options", [[], ["--workers", "2"]])
def test_metrics_say_what_fails_in_the_background(
    start: Start, upstream: FakeUpstream, options: list[str]
) -> None:
    upstream.script = lambda request: (
        answer(b"{}", status=400) if request.json["model"] == "notes" else answer(completion("Yes."))
    )
    serving = start(*options)
    say(serving, range(9))

    def metric() -> str:
        text = serving.client.get("/metrics").text
        lines = [line for line in text.splitlines() if line.startswith("turnkeeper_background_failing{")]
        return lines[0].partition(" ")[2] if lines else ""

    assert until(lambda: metric() == "1.0", 20), serving.log
    upstream.script = noting
    os.kill(background(serving), signal.SIGKILL)  # its pauses are over then, and its lease soon after
    assert awaited(lambda: summaries(serving), 60)
    assert until(lambda: metric() == "0.0")


def test_a_reload_changes_what_is_done_in_the_background(start: Start, upstream: FakeUpstream) -> None:
    upstream.script = noting
    bare = "\n".join(line for line in CONFIG.splitlines() if not line.startswith(("memory:", "  "))).replace(
        "restore_history, inject_summaries", ""
    )
    serving = start(config=bare)
    assert serving.background is None
    serving.path.write_text(CONFIG)
    serving.hang_up()
    assert until(lambda: serving.log.count("was read again") == 1)
    first = background(serving)
    say(serving, range(7))
    assert awaited(lambda: summaries(serving)) == [NOTES]
    serving.path.write_text(CONFIG.replace("model: notes", "model: jottings"))
    serving.hang_up()
    assert until(lambda: serving.log.count("was read again") == 2)
    say(serving, range(7), "other")
    assert until(lambda: any(one.json["model"] == "jottings" for one in upstream.requests))
    assert background(serving) == first
    serving.path.write_text(bare)
    serving.hang_up()
    assert until(lambda: serving.background is None)
    assert not is_alive(first)
    assert "has ended" not in serving.log


def test_a_reload_archives_nothing_anew(start: Start, tmp_path: Path) -> None:
    serving = start()
    names = [f"call-{number}" for number in range(5)]
    with closing(sqlite3.connect(tmp_path / "memory.db", isolation_level=None, timeout=30)) as database:

        def compared() -> bool:
            """Whether the start's comparison is over: a session that it finds is saved twice."""
            with suppress(sqlite3.OperationalError):  # there is no table yet
                return database.execute(COMPARISONS).fetchone() == (1.0,)
            return False

        assert until(compared, 20)
        for name in names:
            say(serving, range(1), name)
        assert until(lambda: {one["session_id"] for one in results(serving)} == {*names}, 20)
        database.execute("CREATE TABLE saved (talk)")
        saving = "AFTER UPDATE ON turnkeeper_talks BEGIN INSERT INTO saved VALUES (new.id); END"
        database.execute(f"CREATE TRIGGER saving {saving}")
        for attempt in range(3):
            serving.hang_up()
            assert until(lambda count=attempt + 1: serving.log.count("was read again") == count)
            say(serving, range(1), name := f"after-{attempt}")
            assert until(lambda session=name: session in [one["session_id"] for one in results(serving)], 20)
        (last,) = database.execute("SELECT max(id) FROM turnkeeper_talks").fetchone()
        assert database.execute("SELECT count(*) FROM saved WHERE talk <= ?", [last - 3]).fetchone() == (0,)
        database.execute("DROP TRIGGER saving")


def test_the_page_shows_a_conversation_and_its_turns(start: Start, upstream: FakeUpstream) -> None:
    upstream.script = noting
    serving = start()
    say(serving, range(7))
    assert awaited(lambda: summaries(serving)) == [NOTES]
    page = httpx2.get(f"{serving.root}/conversations/call").text
    assert NOTES in page
    assert "Turn 6 about a wheelbarrow" in page
    assert "notes" not in httpx2.get(f"{serving.root}/readyz").json()["degraded"]


def test_a_second_signal_ends_all_at_once(start: Start, upstream: FakeUpstream) -> None:
    upstream.says(60.0)
    serving = start(config=CONFIG.replace('"${PORT}"', '"${PORT}", grace: 30s'))
    pids = [background(serving), *serving.members]
    call = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    with httpx2.Client() as client, suppress(httpx2.TransportError):
        asking = threading.Thread(
            target=lambda: _ask(client, f"{serving.root}/v1/chat/completions", call), daemon=True
        )
        asking.start()
        assert until(lambda: upstream.requests)
        serving.process.terminate()
        assert until(lambda: serving.readiness() in {503, None})
        assert serving.process.poll() is None
        time.sleep(0.6)  # sooner it would be the first signal, doubled
        began = time.monotonic()
        serving.process.terminate()
        assert serving.process.wait(20) == 1
        assert time.monotonic() - began < 1 + BUSY
        assert not any(map(is_alive, pids))
        asking.join(5)


def _ask(client: httpx2.Client, url: str, call: dict[str, Any]) -> None:
    with suppress(httpx2.TransportError):
        client.post(url, json=call, timeout=60)


@pytest.mark.parametrize(("stuck", "status"), [("server", 1), ("background", 0)])
def test_a_process_that_does_not_react_is_ended_after_its_grace(
    start: Start, stuck: str, status: int
) -> None:
    serving = start(config=CONFIG.replace('"${PORT}"', '"${PORT}", grace: 1s'))
    pids = [background(serving), *serving.members]
    os.kill(serving.pid if stuck == "server" else background(serving), signal.SIGSTOP)
    began = time.monotonic()
    serving.process.terminate()
    assert serving.process.wait(20) == status, "nothing is lost with the background process"
    assert time.monotonic() - began < 1 + 3 + BUSY
    assert not any(map(is_alive, pids))
