"""Measures how much memory delays the first token, with callers who pause.

python -m bench.caller [--memory sqlite,redis] [--callers 1] [--turns 100] [--pause 0.15] [--config FILE]

One server gets the same requests with and without a session, in alternation, and a new call begins after 16
turns. The platform replays the answers, and sends the newest 25 messages. A processor that sleeps in pauses
loads code and data again for each request, for which a single caller waits. Several callers, who start one
after another, keep it awake.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
from pathlib import Path

import uvloop

from bench.engine import TURNS, Conversation, Line
from bench.load import quantile
from bench.peers import turnkeeper
from bench.serving import free_port, running
from tests.peers.redis_server import RedisServer, closing

_MODEL = "paced-4-5"
_WARM = 16


async def _measured(port: int, options: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Returns the times to the first token without a session, and within one."""
    calls = [_call(port, number, options) for number in range(options.callers)]
    measured = await asyncio.gather(*calls)
    without, within = ([first for call in measured for first in call[side]] for side in (0, 1))
    return without, within


async def _call(port: int, number: int, options: argparse.Namespace) -> tuple[list[float], list[float]]:
    await asyncio.sleep(2 * options.pause * number / options.callers)
    lines = [Line("127.0.0.1", port) for _ in range(2)]
    without, within = list[float](), list[float]()
    for turn in range(_WARM + options.turns):
        if turn % TURNS == 0:
            name = f"x-session-id: caller-{number}-{turn // TURNS}\r\n"
            calls = [
                Conversation(line, _MODEL, headers) for line, headers in zip(lines, ("", name), strict=True)
            ]
        for call, firsts in zip(calls, (without, within), strict=True):
            firsts.append((await call.turn()).first * 1000)
            await asyncio.sleep(options.pause)
    for line in lines:
        line.close()
    return without[_WARM:], within[_WARM:]


def main() -> None:
    """Prints a row for each kind of memory."""
    options = _options()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder, model = Path(name), free_port()
        command = [sys.executable, "-m", "bench.model", str(model)]
        at = f"http://127.0.0.1:{model}/"
        stack.enter_context(running(command, at, core=0, environ={}, log=folder / "model.log"))
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {0})
        print("| memory | first token, ms p50 / p90 | without a session | memory adds |\n|---|---|---|---|")
        for kind in options.memory:
            with contextlib.ExitStack() as own:
                print(_row(kind, _run(kind, options, folder, model, own)), flush=True)


def _run(
    kind: str, options: argparse.Namespace, folder: Path, model: int, stack: contextlib.ExitStack
) -> tuple[list[float], list[float]]:
    redis = stack.enter_context(closing([RedisServer(folder)]))[0].url if kind == "redis" else None
    port = free_port()
    system = turnkeeper(options.config, port, model, redis or f"sqlite:{folder / 'memory.db'}")
    url, log = f"http://127.0.0.1:{port}{system.path}", folder / f"{kind}.log"
    stack.enter_context(running(system.command, url, core=1, environ=system.environ, log=log))
    return uvloop.run(_measured(port, options))


def _row(kind: str, measured: tuple[list[float], list[float]]) -> str:
    without, within = measured
    adds = statistics.median(within) - statistics.median(without)
    quantiles = [f"{quantile(one, 0.5):.2f} / {quantile(one, 0.9):.2f}" for one in (within, without)]
    return f"| {kind} | {quantiles[0]} | {quantiles[1]} | {adds:.2f} |"


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--memory", default=["sqlite", "redis"], type=lambda text: text.split(","))
    options.add_argument("--callers", default=1, type=int)
    options.add_argument("--turns", default=100, type=int)
    options.add_argument("--pause", default=0.15, type=float)
    options.add_argument("--config", default=Path("config/agora.yaml"), type=Path)
    return options.parse_args()


if __name__ == "__main__":
    main()
