"""Ends the servers of a test run that was killed.

A run that is killed cannot stop what it has started. So a process of its own keeps a list of the run's
descendants, and kills those that are left when the run is gone. Linux only: elsewhere there is no ``/proc``.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

_PAUSE = 0.5
_PROC = Path("/proc")
_ZOMBIE = "Z"


class Process(NamedTuple):
    """``started`` is in ticks since the machine's start: with the number it names one process for good."""

    parent: int
    started: int


def watch() -> None:
    """Starts the process that watches this one."""
    if sys.platform.startswith("linux"):
        command = [sys.executable, "-I", "-S", __file__, str(os.getpid())]
        silent = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in range(3)]
        os.posix_spawn(sys.executable, command, os.environ, file_actions=silent, setsid=True)


def main(run: int) -> None:
    """Returns when the run has ended and nothing of it is left."""
    listed = processes()
    began, left = listed.get(run), dict[int, Process]()
    while began and (now := listed.get(run)) and now.started == began.started:
        left = descendants({run: began, **left}, listed)
        left.pop(run, None)
        time.sleep(_PAUSE)
        listed = processes()
    while left := descendants(left, processes()):
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE)


def processes() -> dict[int, Process]:
    """Returns all running processes by their numbers."""
    listed = {}
    for folder in _PROC.iterdir():
        with contextlib.suppress(OSError, ValueError):
            state, parent, *fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if state != _ZOMBIE:
                listed[int(folder.name)] = Process(int(parent), int(fields[17]))
    return listed


def descendants(of: dict[int, Process], listed: dict[int, Process]) -> dict[int, Process]:
    """Those of ``of`` that still run, and all below them but this process."""
    found = {pid for pid, process in of.items() if pid in listed and listed[pid].started == process.started}
    while new := {pid for pid, process in listed.items() if process.parent in found} - found:
        found |= new
    return {pid: listed[pid] for pid in found - {os.getpid()}}


if __name__ == "__main__":
    main(int(sys.argv[1]))
