"""Runs mixed load for a while, and checks the results.

python -m bench.soak [--minutes 30] [--callers 200] [--memory sqlite|redis|URL] [--workers 1] [--large 0]
                     [--plot FILE]

Callers talk in turns at a human pace; some interrupt with newer words, and some hang up. Meanwhile the
configuration is edited and reloaded, a separate Redis is killed and restarted, and every --large seconds one
caller sends or gets as much as is accepted. Everything that was said, and heard to its end, must be stored.
Nothing may fail without cause, and nothing may have grown or become slower: the exit code tells.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop

from bench.serving import free_port, running
from bench.soak.caller import Crowd
from bench.soak.disturbance import LargeRequests, Reloads, Restarts
from bench.soak.ledger import Ledger
from bench.soak.report import FLAT_FILES, Gauge, Soaked, draw, faults, summary, table
from bench.table import picture
from tests.peers.redis_server import RedisServer, closing

_REMEMBERED = 20 * 60.0
"""Seconds for which a call is held in any case: sessions live for half an hour by default."""
_WRITTEN_WITHIN = 60.0
# What Redis has said is written is on its disk then, and a kill takes none of it.
_DURABLE = ["appendonly yes", "appendfsync always"]


class Soak:
    """The parts of a soak."""

    def __init__(self, port: int, gauge: Gauge, reloads: Reloads, restarts: Restarts | None) -> None:
        self.ledger = Ledger(port, remembered=_REMEMBERED)
        self.gauge = gauge
        self.reloads = reloads
        self.restarts = restarts
        self._port = port

    async def run(self, options: argparse.Namespace) -> Soaked:
        """Runs the whole soak."""
        seconds, large = options.minutes * 60, LargeRequests(self._port)
        crowd = Crowd(self._port, self.ledger, pause=options.pause)
        ending = asyncio.Event()
        beside = [
            asyncio.create_task(self._watch(crowd, max(0.5, seconds / 400))),
            asyncio.create_task(self.reloads.keep_on(max(1.0, seconds / 30))),
        ]
        if options.large:
            beside.append(asyncio.create_task(large.keep_on(options.large)))
        restarted = asyncio.create_task(self._restart(options.restart or max(1.5, seconds / 20), ending))
        await crowd.talk(options.callers, time.monotonic() + seconds)
        if options.large:  # a busy machine may take longer for one than a short soak lasts
            await large.first.wait()
        ending.set()
        await restarted
        await self.ledger.checked()
        await _ended(beside)
        await self.reloads.edit()  # what the last edit's clients and connections held goes with them
        await self._written()
        await self.ledger.check_again()
        await self.gauge.look()
        return Soaked(crowd, self.ledger, self.gauge.samples, self.reloads, self.restarts, large.outcomes)

    async def _watch(self, crowd: Crowd, every: float) -> None:
        while True:
            await self.gauge.look(crowd.talking)
            await asyncio.sleep(every)

    async def _restart(self, every: float, ending: asyncio.Event) -> None:
        if self.restarts:
            await self.restarts.keep_on(every, ending)

    async def _written(self) -> None:
        """Waits until the last turns are written and connections are closed."""
        end = time.monotonic() + _WRITTEN_WITHIN
        while time.monotonic() < end:
            await asyncio.sleep(1)
            now = await self.gauge.look()
            most = self.gauge.samples[0].files + FLAT_FILES * self.reloads.workers
            if not (now.waiting or now.in_flight) and now.files <= most:
                return


async def _ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancels tasks; raises the error of one that has failed."""
    for task in tasks:
        task.cancel()
    for error in await asyncio.gather(*tasks, return_exceptions=True):
        if error and not isinstance(error, asyncio.CancelledError):
            raise error


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--minutes", default=30.0, type=float)
    options.add_argument("--callers", default=200, type=int)
    options.add_argument("--pause", default=3.0, type=float, help="mean seconds between two turns")
    options.add_argument("--config", default=Path("config/agora.yaml"), type=Path)
    options.add_argument("--memory", default="sqlite", help="sqlite, redis (a new one), or an address")
    options.add_argument("--restart", type=float, help="seconds from one kill of Redis to the next")
    options.add_argument("--workers", default=1, type=int)
    options.add_argument(
        "--large", default=0.0, type=float, help="seconds between two of the largest requests"
    )
    options.add_argument(
        "--grown", default=0.05, type=float, help="by how much a process may, in the second half"
    )
    options.add_argument("--plot", type=picture, help="a PNG; needs matplotlib")
    return options.parse_args()


def _memory(kind: str, folder: Path, stack: contextlib.ExitStack) -> tuple[str, RedisServer | None]:
    if kind != "redis":
        return (f"sqlite:{folder / 'memory.db'}" if kind == "sqlite" else kind), None
    redis = stack.enter_context(closing([RedisServer(folder, *_DURABLE)]))[0]
    return redis.url, redis


def _started(
    options: argparse.Namespace, folder: Path, stack: contextlib.ExitStack
) -> tuple[Soak, Callable[[], str]]:
    """Starts the model and the server; returns both, and a reader of its log."""
    model, port, log = free_port(), free_port(), folder / "served.log"
    command = [sys.executable, "-m", "bench.model", str(model)]
    url = f"http://127.0.0.1:{model}/"
    stack.enter_context(running(command, url, 0, environ={}, log=folder / "model.log"))
    config = folder / "soak.yaml"
    config.write_text(options.config.read_text())
    address, redis = _memory(options.memory, folder, stack)
    environ = {
        "PORT": str(port),
        "MEMORY_URL": address,
        "UPSTREAM_BASE_URL": f"http://127.0.0.1:{model}/v1",
        "SUMMARY_MODEL": "noted",
    }
    serve = [sys.executable, "-m", "proxy", "serve", str(config), "--workers", str(options.workers)]
    url = f"http://127.0.0.1:{port}/healthz"
    server = stack.enter_context(running(serve, url, 1, environ=environ, log=log))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {0})
    reloads = Reloads(server.pid, config, log, workers=options.workers)
    soak = Soak(port, Gauge(port, server), reloads, Restarts(redis) if redis else None)
    return soak, lambda: log.read_text(errors="replace")


def main() -> None:
    """Runs a soak, prints the figures, and fails if turns were lost or memory has grown."""
    options = _options()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        soak, log = _started(options, Path(name), stack)
        soaked = uvloop.run(soak.run(options))
        print(f"{table(soaked)}\n\n{summary(soaked, options.grown)}")
        if options.plot:
            draw(soaked, options.plot)
        wrong = faults(soaked, options.grown)
        if "Traceback" in log():
            wrong.append(f"the log:\n{log()[-2000:]}")
    sys.exit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
