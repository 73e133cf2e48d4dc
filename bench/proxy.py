"""Measures the latency that the proxy adds to a call, and that of other proxies, in one run.

python -m bench.proxy [--peers nginx,smg] [--levels 1,16,64,200] [--pause 0] [--seconds 6] [--whole 16]
                      [--growth 20,800] [--held 0] [--plot FILE.png]

A fake model and the callers share one core; the measured system has another one, including its background
process. The same load is sent directly to the model before and after each block, and the added latency is the
difference of quantiles. Compare only results of one run, preferably as a ratio.

The numbers of callers in --levels get streams of 32 deltas, 20 ms apart, begin a new call after 16 turns, and
are silent for --pause seconds between two turns. --whole callers request whole answers without a pause. With
memory, four endless calls are measured over 40 turns from each turn of --growth on, and --held calls of two
turns are left open to measure the memory that they take.
"""

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import uvloop

from bench.load import Block, Callers, Load
from bench.peers import PEERS, System, installed, turnkeeper
from bench.serving import Running, free_port, running
from bench.table import Row, picture, printed
from tests.peers.redis_server import RedisServer, closing

_WARM = "paced-32-0"
_CLOSE, _PACED, _BRIEF = "paced-32-1", "paced-32-20", "brief-32"
_LONG_CALLS, _LONG_TURNS = 4, 40


def main() -> None:
    """Measures, and prints a table in Markdown."""
    options = _options()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        model = free_port()
        started = [sys.executable, "-m", "bench.model", str(model)]
        url = f"http://127.0.0.1:{model}/"
        stack.enter_context(running(started, url, core=0, environ={}, log=folder / "model.log"))
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {0})
        rows: list[Row] = []
        for system, port in _systems(options, folder, model, stack):
            rows += _measured(system, port, model, options, folder)
        print(printed(rows))
        if options.plot:
            from bench.table import draw  # noqa: PLC0415 - an extra, for those who want a picture

            draw(rows, options.plot)


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--peers", default="nginx,smg", type=lambda text: [*filter(None, text.split(","))])
    options.add_argument("--levels", default=[1, 16, 64, 200], type=_numbers)
    options.add_argument("--memory", default=["off", "sqlite", "redis"], type=lambda text: text.split(","))
    options.add_argument("--seconds", default=6.0, type=float)
    options.add_argument("--pause", default=0.0, type=float)
    options.add_argument("--whole", default=16, type=int)
    options.add_argument("--growth", default=[20, 800], type=_numbers)
    options.add_argument("--held", default=0, type=int)
    options.add_argument("--config", default=Path("config/agora.yaml"), type=Path)
    options.add_argument("--plot", type=picture)
    return options.parse_args()


def _numbers(text: str) -> list[int]:
    return [*map(int, filter(None, text.split(",")))]


def _systems(
    options: argparse.Namespace, folder: Path, model: int, stack: contextlib.ExitStack
) -> Iterator[tuple[System, int]]:
    for name in options.peers:
        if not installed(name):
            print(f"{name} is not installed: left out.", file=sys.stderr)
            continue
        port = free_port()
        yield PEERS[name](folder, port, model), port
    for kind in options.memory:
        port = free_port()
        yield turnkeeper(options.config, port, model, _address(kind, folder, stack)), port


def _address(kind: str, folder: Path, stack: contextlib.ExitStack) -> str | None:
    if kind == "redis":
        return stack.enter_context(closing([RedisServer(folder)]))[0].url
    return f"sqlite:{folder / 'memory.db'}" if kind == "sqlite" else None


def _measured(
    system: System, port: int, model: int, options: argparse.Namespace, folder: Path
) -> Iterator[Row]:
    log, url = folder / "system.log", f"http://127.0.0.1:{port}{system.path}"
    with running(system.command, url, core=1, environ=system.environ, log=log) as server:
        yield from uvloop.run(_blocks(system, server, port, model, options))


async def _blocks(
    system: System, server: Running, port: int, model: int, options: argparse.Namespace
) -> list[Row]:
    load, direct = Load(port, sessions=system.sessions), Load(model, sessions=False)
    await load.block(Callers(8, _WARM), 1.0)
    idle, rows = server.spent().megabytes, list[Row]()

    def note(kind: str, block: Block, plain: Block | None = None) -> None:
        rows.append(Row(system.name, kind, block, plain or Block(block.callers), idle, server.cold))
        print(rows[-1].summary(), file=sys.stderr, flush=True)

    async def beside_direct(kind: str, callers: Callers) -> None:
        before = await direct.block(callers, options.seconds / 3)
        block = await load.block(callers, options.seconds, server)
        note(kind, block, before.joined(await direct.block(callers, options.seconds / 3)))

    silent = f", {options.pause:g} s apart" if options.pause else ""
    for level in options.levels:
        model_name = _CLOSE if level == 1 else _PACED
        await beside_direct(f"{level} streams{silent}", Callers(level, model_name, options.pause))
    if options.whole:
        whole = Callers(options.whole, _BRIEF, stream=False)
        await beside_direct(f"whole answers, {options.whole} callers", whole)
    if system.sessions:
        blocks = await load.growth(_LONG_CALLS, options.growth, _LONG_TURNS, _WARM, server)
        for turn, block in zip(options.growth, blocks, strict=True):
            note(f"from turn {turn} on", block)
        if options.held:
            note(f"{options.held} calls held", await load.held(options.held, "paced-1-0", server))
    return rows


if __name__ == "__main__":
    main()
