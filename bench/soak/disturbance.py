"""Disturbs a server while it is in use.

Its configuration is reloaded, its Redis is killed, and callers send and get as much as is accepted.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from bench.memory import ROWS, send
from tests.peers.redis_server import RedisServer

_BAD = "\nnonsense: true\n"
_BACK_WITHIN = 5.0
_TOLD_WITHIN = 60.0


class Outage(NamedTuple):
    """The time of an outage of memory."""

    start: float
    end: float


class Reloads:
    """Edits the configuration, every third time with an error, and sends SIGHUP to each process."""

    def __init__(self, pid: int, config: Path, log: Path, *, workers: int) -> None:
        self.good = 0
        self.bad = 0
        self.unheard = 0
        self._pid = pid
        self._config = config
        self._text = config.read_text()
        self._log = log
        self.workers = workers

    async def keep_on(self, every: float) -> None:
        """Continues until it is cancelled."""
        while True:
            await asyncio.sleep(every)
            await self.edit(badly=(self.good + self.bad) % 3 == 2)

    async def edit(self, *, badly: bool = False) -> None:
        """Makes one edit, and waits until it is logged."""
        self.good, self.bad = self.good + (not badly), self.bad + badly
        self._config.write_text(self._text + (_BAD if badly else f"\n# edit {self.good}\n"))
        os.kill(self._pid, signal.SIGHUP)
        self.unheard += not await self._is_logged()

    async def _is_logged(self) -> bool:
        """Whether each process has logged that it loaded each valid edit, or refused each invalid one."""
        end = time.monotonic() + _TOLD_WITHIN
        while time.monotonic() < end:
            log = await asyncio.to_thread(self._log.read_text, errors="replace")
            good, bad = log.count("was read again"), log.count("The new configuration is not used")
            if good == self.good * self.workers and bad == self.bad:
                return True
            await asyncio.sleep(0.2)
        return False


class Restarts:
    """Kills Redis, and starts it again on the same port and folder some seconds later."""

    def __init__(self, server: RedisServer, seed: int = 2) -> None:
        self.outages: list[Outage] = []
        self._server = server
        self._dice = random.Random(seed)

    async def keep_on(self, every: float, ending: asyncio.Event) -> None:
        """Continues until ``ending`` is set, and leaves Redis running."""
        while not await _within(ending, every):
            began = time.monotonic()
            await asyncio.to_thread(self._server.kill)
            await _within(ending, self._dice.uniform(0.1, min(5.0, every / 2)))
            await asyncio.to_thread(self._server.start)
            self.outages.append(Outage(began, time.monotonic()))

    def explains(self, moment: float) -> bool:
        """Whether memory was away at a time, or had only just come back."""
        return any(one.start <= moment <= one.end + _BACK_WITHIN for one in self.outages)


class LargeRequests:
    """Sends one of the largest requests, or gets one of the largest answers, after the other.

    ``outcomes`` counts their results; ``first`` is set after the first one.
    """

    def __init__(self, port: int) -> None:
        self.outcomes = Counter[str]()
        self.first = asyncio.Event()
        self._port = port

    async def keep_on(self, every: float) -> None:
        """Continues until it is cancelled."""
        for name in cycle(
            name for name in ROWS if "filters" not in name
        ):  # which need a pipeline of their own
            await asyncio.sleep(every)
            status = await asyncio.to_thread(lambda row=ROWS[name]: send(self._port, next(iter(row()))))
            self.outcomes[f"{name}: {status}"] += 1
            self.first.set()


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
