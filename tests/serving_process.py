"""``turnkeeper serve`` as a process of its own, and what the kernel knows of it."""

import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import httpx2

from tests import preloaded
from tests.peers.redis_server import free_port
from tests.preloaded import PROGRAM
from tests.waiting import until

LISTEN = 'listen: {port: "${PORT}", drain: 10ms}\n'
"""What a configuration has to have that is served by itself; it ends at once."""

_UNFINISHED = re.compile(r"^turnkeeper_(?:turns_in_flight|memory_queue_turns) (\S+)$", re.MULTILINE)


def at_rest(client: httpx2.Client) -> bool:
    """Whether no turn is being answered, and none is yet to be written."""
    return [float(count) for count in _UNFINISHED.findall(client.get("/metrics").text)] == [0, 0]


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def niceness(pid: int) -> int:
    """How nice a process is to others; 19 is the most, also of one that has ended."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[16])
    return 19


def _state(pid: int) -> str:
    """A process's state as the kernel has it: ``T`` is stopped, and ``Z`` has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "Z"


def kill_all(process: "subprocess.Popen[Any]") -> None:
    """Sends SIGKILL to a server and all its processes, like a failure of the machine."""
    process.send_signal(signal.SIGSTOP)  # or it would start one again
    assert until(lambda: _state(process.pid) in "TZ"), "it has not stopped"  # it may be about to start one
    pids = *children(process.pid), process.pid
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    # One that waits for the disk has its port, and the file's lock, until that is over.
    assert until(lambda: all(_state(pid) == "Z" for pid in pids)), "it has not ended"


class ServingProcess:
    """Serves a configuration, whose ``listen.port`` is ``${PORT}``, until it is left.

    ``said`` is the file with all that it wrote. ``pid`` is the process that serves, of several the first, and
    ``members`` are all that serve. ``command`` may be changed before it starts.
    """

    def __init__(self, folder: Path, config: str, *options: str, **environ: str) -> None:
        self.path = folder / "served.yaml"
        self.path.write_text(config)
        self.said = folder / "served.log"
        self.command = [*PROGRAM, "serve", str(self.path), *options]
        self._environ = environ
        self.port = free_port()

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """It is up; again, on the same port, after it has ended."""
        self.begin()
        assert until(lambda: self.is_up() or self.process.poll() is not None, 90)
        assert self.is_up(), self.log

    def begin(self) -> None:
        """Starts it, and waits for nothing."""
        with self.said.open("ab") as out:
            env = {**os.environ, "PORT": str(self.port), **self._environ}
            if self.command[:3] == PROGRAM:
                self.process = preloaded.start(self.command[3:], env, out)
            else:
                self.process = subprocess.Popen(self.command, env=env, stdout=out, stderr=out)
        self.client = httpx2.Client(base_url=self.root, timeout=10, verify=False, trust_env=False)

    def __exit__(self, *_: object) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            finally:
                self.process.kill()

    @property
    def pid(self) -> int:
        return next(iter(self.members), self.process.pid)

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self.said.read_text(errors="replace")

    def readiness(self) -> int | None:
        """The status of ``/readyz``; ``None`` if no server answers."""
        try:
            return self.client.get("/readyz").status_code
        except httpx2.TransportError:
            return None

    def is_up(self) -> bool:
        return self.readiness() == 200

    def chat(self, text: str = "Hi", session: str | None = None, **fields: Any) -> httpx2.Response:
        """A turn over a connection of its own."""
        named = {"X-Session-Id": session} if session else {}
        body = {"model": "fake", "messages": [{"role": "user", "content": text}], **fields}
        return httpx2.post(
            f"{self.root}/v1/chat/completions", json=body, headers=named, timeout=10, verify=False
        )

    def hang_up(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    def kill(self) -> None:
        """SIGKILL, to all of its processes at once."""
        self.client.close()
        kill_all(self.process)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self.process.wait(20)

    @property
    def members(self) -> list[int]:
        """The pids of the processes that serve."""
        return [pid for pid in children(self.process.pid) if niceness(pid) == niceness(self.process.pid)]

    @property
    def background(self) -> int | None:
        """The pid of the background process."""
        own = niceness(self.process.pid)
        return next((pid for pid in children(self.process.pid) if niceness(pid) > own), None)

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def megabytes(self) -> float:
        """What it holds in memory."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))
