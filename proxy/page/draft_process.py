"""Processes in which drafts are tried, with limits of time, memory and number."""

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

from proxy.background.priority import give_way
from proxy.errors import DraftsBusy, DraftStopped, ShuttingDown, TurnkeeperError
from proxy.page.renderer import Renderer
from proxy.page.trials import Trial

if sys.platform != "win32":
    import resource

_AT_ONCE: Final = 2
_MOST_PENDING: Final = 8
# In seconds: limits of CPU time, of time in a process, and of time including the wait for a process.
_COMPUTING: Final = 5.0
_LASTING: Final = 20.0
_PATIENCE: Final = 40.0
_MEGABYTES: Final = 256
# In seconds: how long an idle process is kept, as it takes half a second to start one.
_IDLE: Final = 60.0
_OUT_OF_MEMORY: Final = 3
_TEMPLATES: Final = ("parts.html", "tried.html", "replayed.html", "errors.html")
_HEADER: Final = struct.Struct(">I?")
"""The length of the data that follows, and whether they are a result; otherwise they are an error."""
_READY: Final = b"."


class DraftProcesses:
    """Runs trials of drafts, two at once, each in its own process; a few more may wait."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._pending = 0
        self._processes: dict[_Process, asyncio.TimerHandle | None] = {}
        """All running processes; idle ones with the timer that ends them."""
        self._closed = False

    async def run(self, trial: Trial) -> bytes:
        """Runs a trial and returns its result.

        Raises DraftStopped, which names the limit, DraftsBusy, ShuttingDown, and TurnkeeperError where the
        process was killed.
        """
        if self._pending >= _MOST_PENDING:
            raise _busy()
        self._pending += 1
        try:
            async with asyncio.timeout(_PATIENCE), self._slots:
                return await self._run(trial)
        except TimeoutError:
            raise _busy() from None
        finally:
            self._pending -= 1

    def close(self) -> None:
        """Kills all processes, and starts no more."""
        self._closed = True
        for process in self._processes:
            process.kill()

    async def _run(self, trial: Trial) -> bytes:
        if self._closed:
            raise ShuttingDown("Turnkeeper is shutting down; try again.")
        process = self._take()
        try:
            is_result, data = await process.run(trial)
        except BaseException as error:
            self._end(process)
            if not isinstance(error, OSError | EOFError):
                raise
            if self._closed:
                raise ShuttingDown("Turnkeeper is shutting down; try again.") from None
            raise TurnkeeperError("The process that tried this draft was killed; try again.") from None
        self._processes[process] = asyncio.get_running_loop().call_later(_IDLE, self._end, process)
        if not is_result:
            raise DraftStopped(data.decode())
        return data

    def _take(self) -> "_Process":
        for process, timer in self._processes.items():
            if timer:
                timer.cancel()
                self._processes[process] = None
                return process
        process = _Process()
        self._processes[process] = None
        return process

    def _end(self, process: "_Process") -> None:
        del self._processes[process]
        process.kill()


class _Process:
    """A process that has imported the modules for drafts, and forks for each draft."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(0)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - this very module
                [sys.executable, "-m", __name__],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a traceback may quote the user
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
            )
        threading.Thread(target=self._process.wait, name="draft", daemon=True).start()

    async def run(self, trial: Trial) -> tuple[bool, bytes]:
        """Returns true and the result, or false and the error; raises OSError and EOFError where it ended."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(sock=self._socket)
            await self._streams[0].readexactly(len(_READY))
        reader, writer = self._streams
        # In a thread, since a kept turn may have megabytes; the event loop can run between two pieces.
        pieces = await asyncio.to_thread(_pickled, trial)
        writer.write(_HEADER.pack(sum(map(len, pieces)), True))  # noqa: FBT003
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        length, is_result = _HEADER.unpack(await reader.readexactly(_HEADER.size))
        return is_result, await reader.readexactly(length)

    def kill(self) -> None:
        """Kills the process and its fork."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if self._streams:
            self._streams[1].close()
        else:
            self._socket.close()


class _Pieces(list[bytes]):
    """A file for a pickler, which collects its output in pieces of about 64 KB."""

    def write(self, data: bytes) -> None:
        self.append(bytes(data))


def _pickled(trial: Trial) -> list[bytes]:
    pieces = _Pieces()
    pickle.Pickler(pieces).dump(trial)
    return pieces


def _busy() -> DraftsBusy:
    return DraftsBusy("Too many drafts are being tried now; try again in some seconds.", retry_after=5)


# --- in the process


def main() -> None:
    """Runs the trials that arrive at the socket on file descriptor 0, each in a fork, until it is closed."""
    renderer = Renderer()
    renderer.compile(*_TEMPLATES)  # now, rather than in each fork
    give_way()  # only now: on a busy machine the first draft would otherwise wait for long
    with socket.socket(fileno=0) as channel, channel.makefile("rwb") as stream:
        stream.write(_READY)
        stream.flush()
        while header := stream.read(_HEADER.size):
            length, _ = _HEADER.unpack(header)
            trial = pickle.loads(stream.read(length))  # noqa: S301 - from the server alone
            is_result, data = _run_in_fork(trial, renderer)
            stream.write(_HEADER.pack(len(data), is_result) + data)
            stream.flush()


def _run_in_fork(trial: Trial, renderer: Renderer) -> tuple[bool, bytes]:
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.close(reading)
            # The kernel ends this process if it takes too long, and limits its memory.
            signal.setitimer(signal.ITIMER_PROF, _COMPUTING)
            signal.setitimer(signal.ITIMER_REAL, _LASTING)
            with contextlib.suppress(OSError, ValueError):
                pages = int(Path("/proc/self/statm").read_text().split()[0])
                limit = pages * resource.getpagesize() + _MEGABYTES * 1_000_000
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            with os.fdopen(writing, "wb") as out:
                out.write(trial.run(renderer))
            code = 0
        except MemoryError:
            code = _OUT_OF_MEMORY
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as result:
        data = result.read()
    _, status = os.waitpid(pid, 0)
    return (False, _stop_reason(status).encode()) if status else (True, data)


def _stop_reason(status: int) -> str:
    """The message about a draft's process that has ended, by its exit status."""
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGPROF:
        return f"The draft took longer than {_COMPUTING:g} s to compute, and was stopped."
    if code == -signal.SIGALRM:
        return f"The draft took longer than {_LASTING:g} s, and was stopped."
    # Without memory, libraries in other languages than Python abort, and the kernel kills the process.
    if code in {_OUT_OF_MEMORY, -signal.SIGABRT, -signal.SIGKILL}:
        return f"The draft needed more than {_MEGABYTES} MB of memory, and was stopped."
    return (
        f"The draft's process crashed ({code}); it has {_MEGABYTES} MB of memory, and may have needed more."
    )


if __name__ == "__main__":
    main()
