"""A stalled reader of the log delays nothing."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.peers.fake_upstream import FakeUpstream
from tests.serving_process import LISTEN, ServingProcess, kill_all
from tests.waiting import until

CONFIG = (
    LISTEN
    + """
memory: {sessions: "${MEMORY_URL}", deadline: 1s}
limits: {requests_per_minute: 600}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", model: one}}
pipelines: {default: {upstreams: [main], request: [restore_history]}}
"""
)
SMALLEST = 4096
Start = Callable[..., ServingProcess]
CREW = """
import os, sys
from pathlib import Path
from proxy.server import signals
from proxy.server.workers import Workers
from proxy.settings.load import load

class Crew(Workers):
    def _work(self, place):
        with open(sys.argv[1], "a") as starts:
            starts.write("x")
        raise RuntimeError("in vain")

signals.block()
path = Path(sys.argv[2])
Crew(path, load(path, {}), {}, 1).serve([], watch=False)
"""


class Stalled:
    """A pipe that is full, at ``path``; whoever writes to it waits until it is read."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._end: int | None = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        fcntl.fcntl(self._end, fcntl.F_SETPIPE_SZ, SMALLEST)
        assert os.write(self._end, b" " * SMALLEST) == SMALLEST

    def read(self) -> str:
        """What there is to be read."""
        try:
            return os.read(self._end, 65536).decode()
        except BlockingIOError:
            return ""

    def close(self) -> None:
        """Nobody will read it any more."""
        if self._end is not None:
            os.close(self._end)
        self._end = None

    def above(self, command: list[str]) -> list[str]:
        """A command whose errors go there."""
        return ["sh", "-c", f'exec "$@" 2>{self.path}', "sh", *command]


@pytest.fixture
def stalled(tmp_path: Path) -> Iterator[Stalled]:
    pipe = Stalled(tmp_path / "stderr")
    yield pipe
    pipe.close()


@pytest.fixture
def start(tmp_path: Path, upstream: FakeUpstream, stalled: Stalled) -> Iterator[Start]:
    started: list[ServingProcess] = []

    def begin(*options: str) -> ServingProcess:
        environ = {"UPSTREAM_BASE_URL": upstream.url, "MEMORY_URL": f"sqlite:{tmp_path / 'sessions.db'}"}
        serving = ServingProcess(tmp_path, CONFIG, *options, **environ)
        serving.command = stalled.above(serving.command)
        started.append(serving)
        serving.start()
        return serving

    yield begin
    for each in started:
        if each.process.poll() is None:
            kill_all(each.process)
        each.__exit__()


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends here at the latest."""
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def waits_for_a_reader(pid: int) -> bool:
    """Whether one of a process's threads stands in a write."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return any("pipe_write" in (thread / "wchan").read_text() for thread in threads)


def test_a_server_ends(start: Start) -> None:
    serving = start()
    assert serving.chat().status_code == 200
    assert serving.stop() == 0


def test_a_worker_ends(tmp_path: Path, stalled: Stalled) -> None:
    config = tmp_path / "worker.yaml"
    config.write_text(
        f"memory: {{sessions: 'sqlite:{tmp_path / 'sessions.db'}'}}\n"
        "upstreams: {main: {base_url: 'practice:'}}\npipelines: {default: {upstreams: [main]}}\n"
    )
    command = stalled.above([sys.executable, "-m", "proxy", "worker", str(config)])
    with running(command) as worker:
        assert worker.stdout and worker.stdout.readline()
        worker.send_signal(signal.SIGHUP)
        assert until(lambda: waits_for_a_reader(worker.pid))
        worker.terminate()
        assert worker.wait(10) == 0


def test_a_process_that_dies_is_started_again_and_all_end(start: Start) -> None:
    serving = start("--workers", "2")
    assert until(lambda: len(serving.members) == 2)
    killed, other = serving.members
    os.kill(killed, signal.SIGKILL)
    assert until(lambda: len(serving.members) == 2 and killed not in serving.members and serving.is_up(), 5)
    assert other in serving.members
    assert serving.stop() == 0


def test_a_bad_edit_holds_no_process_up(start: Start) -> None:
    serving = start("--workers", "2")
    serving.path.write_text(CONFIG.replace("upstreams:", "upstreamz:"))
    serving.hang_up()
    assert serving.chat().status_code == 200
    assert serving.stop() == 0


@pytest.mark.parametrize("options", [(), ("--workers", "2")])
def test_a_reader_who_is_gone_ends_nobody(start: Start, stalled: Stalled, options: tuple[str, ...]) -> None:
    serving = start(*options)
    count = max(1, len(options))
    assert until(lambda: len(serving.members) == count)
    stalled.close()
    for pid in serving.members[:1]:
        os.kill(pid, signal.SIGKILL)
        assert until(
            lambda pid=pid: len(serving.members) == count and pid not in serving.members and serving.is_up()
        )
    assert {serving.chat().status_code for _ in range(6)} == {200}
    serving.path.write_text(CONFIG.replace("upstreams:", "upstreamz:"))
    serving.hang_up()
    assert {serving.chat().status_code for _ in range(6)} == {200}
    assert serving.stop() == 0


def test_who_reads_again_soon_loses_no_line(start: Start, stalled: Stalled) -> None:
    serving = start("--workers", "2")
    assert until(lambda: len(serving.members) == 2)
    killed = serving.members[0]
    os.kill(killed, signal.SIGKILL)
    assert until(lambda: killed not in serving.members)
    read: list[str] = []
    assert until(lambda: read.append(stalled.read()) or f"(pid {killed}) has ended" in "".join(read), 5)


def test_a_process_that_cannot_work_is_tried_again(tmp_path: Path, stalled: Stalled) -> None:
    starts = tmp_path / "starts"
    path = tmp_path / "crew.yaml"
    path.write_text("upstreams: {main: {base_url: 'practice:'}}\npipelines: {default: {upstreams: [main]}}\n")
    command = stalled.above([sys.executable, "-c", CREW, str(starts), str(path)])
    with running(command) as crew:
        assert until(lambda: starts.exists() and len(starts.read_text()) >= 2, 30)
        crew.terminate()
        assert crew.wait(30) == 0
