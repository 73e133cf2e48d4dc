"""Starts a server under test on a separate core, and reads its CPU time and memory from the kernel."""

import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests import leftovers


class Spent(NamedTuple):
    """The use of a process and its children so far: seconds of CPU, and current megabytes (PSS)."""

    seconds: float
    megabytes: float


class Running(NamedTuple):
    """A running server: its process, and the seconds until its first answer."""

    pid: int
    cold: float

    def spent(self) -> Spent:
        """Its use of CPU and memory."""
        family = _family(self.pid)
        return Spent(sum(map(_seconds, family)), sum(map(_megabytes, family)))

    def megabytes(self) -> Mapping[str, float]:
        """The memory of its processes by their role (PSS): main, serving, background."""
        kinds: dict[str, float] = {}
        usual = os.getpriority(os.PRIO_PROCESS, self.pid)
        for process in _family(self.pid):
            with contextlib.suppress(ProcessLookupError):
                gives_way = os.getpriority(os.PRIO_PROCESS, process) > usual
                kind = "first" if process == self.pid else "background" if gives_way else "server"
                kinds[kind] = kinds.get(kind, 0.0) + _megabytes(process)
        return kinds


def free_port() -> int:
    """Returns a free port."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


@contextlib.contextmanager
def running(
    command: Sequence[str], url: str, core: int | None, *, environ: Mapping[str, str], log: Path
) -> Iterator[Running]:
    """Runs the command of a server until the block or this process ends; waits until ``url`` answers."""
    _watch()
    began = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            pinned(command, core),
            env={**os.environ, **environ},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        _await(process, url, log)
        yield Running(process.pid, time.monotonic() - began)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(40)


_watch = functools.cache(leftovers.watch)


def pinned(command: Sequence[str], core: int | None) -> list[str]:
    """Returns the command, pinned to a core if one is given and the system supports it."""
    if core is None:
        return [*command]
    cores = os.cpu_count() or 1
    return ["taskset", "-c", str(core % cores), *command] if shutil.which("taskset") else [*command]


def _await(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            try:
                urllib.request.urlopen(url, timeout=1).close()
            except urllib.error.HTTPError:
                return
            return
        if process.poll() is not None:
            break
        time.sleep(0.01)
    sys.exit(f"{process.args!r} did not come up: {log.read_text(errors='replace')[-500:]}")


def _family(pid: int) -> list[int]:
    """Returns a process with all its descendants."""
    parents = {int(p.name): _parent(p) for p in Path("/proc").iterdir() if p.name.isdigit()}
    family = [pid]
    for member in family:
        family += [child for child, parent in parents.items() if parent == member]
    return family


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _seconds(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task")
    try:
        # The scheduler's own count, in nanoseconds: ticks of 10 ms are too coarse for a short run.
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9
    except OSError:
        return 0.0


def _megabytes(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)
