"""``python -m proxy`` without the half second of CPU that loading it takes.

One process for all that a test process starts has it loaded, and forks for each. What is forked gets
arguments, environment and files of its own, and does what ``python -m proxy`` does from there on. Elsewhere
than on Linux each is loaded by itself.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

PROGRAM = [sys.executable, "-m", "proxy"]
_ROOT = Path(__file__).parents[1]
_LARGEST = 1_000_000
_MOST_FILES = 1024


def run(*arguments: str, folder: Path, env: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """What comes of a command within a minute."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = start(arguments, env, out, err, folder)
        try:
            process.wait(60)
        finally:
            process.kill()
        said = [os.pread(each.fileno(), _LARGEST, 0).decode() for each in (out, err)]
    return subprocess.CompletedProcess(process.args, process.wait(), *said)


@contextlib.contextmanager
def greeting(
    *arguments: str, env: Mapping[str, str], err: IO[bytes] | None = None
) -> "Iterator[tuple[Preloaded | subprocess.Popen[bytes], str]]":
    """A process, and the first line that it says; it is killed at the end, if it still runs."""
    reading, writing = os.pipe()
    with os.fdopen(reading, encoding="utf-8") as said:
        with os.fdopen(writing, "wb") as out:
            process = start(arguments, env, out, err)
        try:
            yield process, said.readline()
        finally:
            process.kill()
            process.wait()


def start(
    arguments: Sequence[str],
    env: Mapping[str, str],
    out: IO[bytes],
    err: IO[bytes] | None = None,
    folder: Path | None = None,
) -> "Preloaded | subprocess.Popen[bytes]":
    """A process that has begun; what it says goes to files, and without ``err`` to the same one."""
    if sys.platform.startswith("linux"):
        return Preloaded(arguments, env, out, err or out, folder or Path.cwd())
    command = [*PROGRAM, *arguments]
    return subprocess.Popen(command, env=env, cwd=folder, stdout=out, stderr=err or out)


class Preloaded:
    """A process that was forked, as ``subprocess.Popen`` has one."""

    def __init__(
        self, arguments: Sequence[str], env: Mapping[str, str], out: IO[bytes], err: IO[bytes], folder: Path
    ) -> None:
        self.args = [*PROGRAM, *arguments]
        self.returncode: int | None = None
        wanted = {"arguments": [*arguments], "env": {**env}, "folder": str(folder)}
        # Its number comes here, and how it ended.
        self._news, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            files = [out.fileno(), err.fileno(), theirs.fileno()]
            socket.send_fds(_template()[1], [json.dumps(wanted).encode()], files)
        self.pid = int(self._news.recv(100))

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _ended(self, within: float | None) -> int | None:
        if self.returncode is None:
            self._news.settimeout(within)
            try:
                self.returncode = int(self._news.recv(100))
            except (BlockingIOError, TimeoutError):
                return None
            self._news.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@cache
def _template() -> tuple[int, socket.socket]:
    """The process that forks, which ends with this one, and the way to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        theirs.set_inheritable(True)
        command = [sys.executable, __file__, str(theirs.fileno())]
        silent = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
        pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=silent, setsid=True)
    return pid, ours


def _fork(channel: socket.socket) -> None:
    """Forks for each that is wanted, and tells when it has ended; returns in what was forked alone."""
    running: dict[int, tuple[int, socket.socket]] = {}
    with select.epoll() as ready:
        ready.register(channel, select.EPOLLIN)
        while True:
            for file, _ in ready.poll():
                if file in running:
                    pid, news = running.pop(file)
                    os.close(file)
                    with news, contextlib.suppress(OSError):  # which nobody waits for any more
                        news.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                    continue
                data, files, *_ = socket.recv_fds(channel, _LARGEST, 3)
                if not data:
                    sys.exit()
                if not (pid := os.fork()):
                    for each in (channel, *(news for _, news in running.values())):
                        each.detach()  # or what has its number later is closed with it
                    return _become(json.loads(data), *files[:2])
                *others, last = files
                for other in others:
                    os.close(other)
                news = socket.socket(fileno=last)
                news.send(b"%d" % pid)
                end = os.pidfd_open(pid)
                running[end] = pid, news
                ready.register(end, select.EPOLLIN)


def _become(wanted: dict[str, Any], out: int, err: int) -> None:
    """Makes this process what ``python -m proxy`` begins as."""
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.environ.clear()
    os.environ.update(wanted["env"])
    time.tzset()
    os.chdir(wanted["folder"])
    sys.argv[1:] = wanted["arguments"]
    sys.path[:1] = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]  # noqa: PTH109


if __name__ == "__main__":
    sys.path[0] = str(_ROOT)
    from proxy import __main__, cli  # noqa: F401

    gc.freeze()
    _fork(socket.socket(fileno=int(sys.argv[1])))
    os.closerange(3, _MOST_FILES)
    __main__.main()
