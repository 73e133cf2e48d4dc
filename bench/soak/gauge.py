"""How the server stands while it is in use."""

import asyncio
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import msgspec

from bench.serving import Running


class Sample(msgspec.Struct, frozen=True):
    """How the server stood: when, its seconds of CPU so far, megabytes, open files, and turns.

    ``megabytes`` are those of each kind of its processes.
    """

    at: float
    seconds: float
    megabytes: Mapping[str, float]
    files: int
    talking: int
    waiting: int
    lost: int
    in_flight: int

    @property
    def total(self) -> float:
        """The megabytes of all processes."""
        return sum(self.megabytes.values())


class Gauge:
    """Looks at a server again and again."""

    def __init__(self, port: int, server: Running) -> None:
        self.samples: list[Sample] = []
        self._port = port
        self._server = server

    async def look(self, talking: int = 0) -> Sample:
        """How it stands now; ``talking`` is how many callers there are."""
        self.samples.append(await asyncio.to_thread(self._sample, talking))
        return self.samples[-1]

    def _sample(self, talking: int) -> Sample:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=10) as got:
            told = dict(line.rsplit(" ", 1) for line in got.read().decode().splitlines() if line[:1] != "#")
        return Sample(
            time.monotonic(),
            self._server.spent().seconds,
            self._server.megabytes(),
            files_of(self._server.pid),
            talking,
            int(float(told["turnkeeper_memory_queue_turns"])),
            int(float(told["turnkeeper_lost_turns_total"])),
            int(float(told["turnkeeper_turns_in_flight"])),
        )


def files_of(pid: int) -> int:
    """How many files a process and those that it has started hold open."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(len(list(Path(f"/proc/{each}/fd").iterdir())) for each in [pid, *children])
