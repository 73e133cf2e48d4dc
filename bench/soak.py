"""Holds mixed load for a while, and looks at what is left of it.

python -m bench.soak [--minutes 30] [--callers 200] [--workers 1] [--memory redis://…] [--config FILE] …

Callers talk in turns at a realistic pace; some interrupt with newer words, some hang up, and now and then the
configuration is read again. At the end nothing may be lost and nothing may have grown: the exit code says so.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.serving import Running, free_port, running

_MODEL = "paced-24-25"
_CONFIG = """
listen: {port: "${PORT}"}
log: {level: warning}
memory: {sessions: "${MEMORY_URL}"}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines: {default: {upstreams: [main], request: [repair_history, restore_history, restore_interrupted]}}
"""
_TURNS = 12
_HANGS_UP, _INTERRUPTS = 0.15, 0.15
_FLAT_FILES = 20


class Sample(msgspec.Struct, frozen=True):
    """How the server stood: seconds since the start, megabytes, open files, and turns."""

    at: float
    megabytes: float
    files: int
    waiting: int
    lost: int
    in_flight: int


class Soak:
    """Callers, what became of their turns, and how the server stood meanwhile."""

    def __init__(self, port: int, server: Running, seed: int = 1) -> None:
        self.outcomes: Counter[str] = Counter()
        self.samples: list[Sample] = []
        self.reloads = 0
        self._port = port
        self._server = server
        self._dice = random.Random(seed)
        self._numbers = 0

    async def run(self, callers: int, seconds: float) -> None:
        """All of it."""
        until = time.monotonic() + seconds
        beside = [
            asyncio.create_task(self._watch(max(0.5, seconds / 200))),
            asyncio.create_task(self._reload(max(1.0, seconds / 20))),
        ]
        await asyncio.gather(*(self._caller(until, 3.0 * place / callers) for place in range(callers)))
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await asyncio.sleep(2)  # what was said last is written, and connections are closed
        self.samples.append(self._sample())

    async def _caller(self, until: float, late: float) -> None:
        await asyncio.sleep(late)
        while time.monotonic() < until:
            self._numbers += 1
            name = f"soak-{self._numbers}"
            for turn in range(1, _TURNS + 1):
                if time.monotonic() >= until:
                    break
                await self._turn(name, turn)
                await asyncio.sleep(self._dice.uniform(0.2, 1.5))

    async def _turn(self, name: str, turn: int) -> None:
        words = f"Question {turn} of {name}, in as many words as people use"
        try:
            if self._dice.random() < _INTERRUPTS:
                first = asyncio.create_task(self._ask(name, turn, words[:20], None))
                await asyncio.sleep(self._dice.uniform(0.0, 0.4))
                outcome = await self._ask(name, turn, words, None)
                self.outcomes[f"superseded: {await first}"] += 1
            else:
                patience = self._dice.uniform(0.0, 0.6) if self._dice.random() < _HANGS_UP else None
                outcome = await self._ask(name, turn, words, patience)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            outcome = type(error).__name__
        self.outcomes[outcome] += 1

    async def _ask(self, name: str, turn: int, words: str, patience: float | None) -> str:
        """``whole``, ``left``, ``broken`` or the status; ``patience`` is when the caller hangs up."""
        message = {"role": "user", "content": words, "turn_id": turn}
        said = json.dumps({"model": _MODEL, "stream": True, "turn_id": turn, "messages": [message]}).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nx-session-id: {name}\r\n"
            f"connection: close\r\ncontent-length: {len(said)}\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(head.encode() + said)
            async with asyncio.timeout(patience or 30):
                answer = await reader.read(-1)
        except TimeoutError:
            return "left" if patience is not None else "too late"
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        if not answer.startswith(b"HTTP/1.1 200"):
            return answer[9:12].decode() or "nothing"
        return "whole" if b"data: [DONE]" in answer else "broken"

    async def _watch(self, every: float) -> None:
        while True:
            self.samples.append(await asyncio.to_thread(self._sample))
            await asyncio.sleep(every)

    async def _reload(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            os.kill(self._server.pid, signal.SIGHUP)
            self.reloads += 1

    def _sample(self) -> Sample:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=10) as got:
            told = dict(line.rsplit(" ", 1) for line in got.read().decode().splitlines() if line[:1] != "#")
        return Sample(
            time.monotonic(),
            self._server.spent().megabytes,
            files_of(self._server.pid),
            int(float(told["turnkeeper_memory_queue_turns"])),
            int(float(told["turnkeeper_lost_turns_total"])),
            int(float(told["turnkeeper_turns_in_flight"])),
        )


def files_of(pid: int) -> int:
    """How many files a process and those that it has started hold open."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(len(list(Path(f"/proc/{each}/fd").iterdir())) for each in [pid, *children])


def faults(soak: Soak, most_grown: float) -> list[str]:
    """What must not be: lost turns, errors that nobody made, and what has grown since the first third."""
    wanted = {"whole", "left"} | {f"superseded: {each}" for each in ("409", "whole", "nothing")}
    found = [f"{count} turns: {outcome}" for outcome, count in soak.outcomes.items() if outcome not in wanted]
    last = soak.samples[-1]
    if last.lost or last.waiting or last.in_flight:
        found.append(f"{last.lost} turns lost, {last.waiting} not written, {last.in_flight} not ended")
    third = len(soak.samples) // 3
    before, after = soak.samples[third : 2 * third], soak.samples[2 * third :]
    grown = _middle(after, "megabytes") / _middle(before, "megabytes") - 1
    if grown > most_grown:
        found.append(f"memory has grown by {grown:.0%}")
    if last.files > soak.samples[0].files + _FLAT_FILES:
        found.append(f"{last.files} files are open, there were {soak.samples[0].files}")
    return found


def _middle(samples: Sequence[Sample], name: str) -> float:
    return statistics.median(getattr(sample, name) for sample in samples)


def told(soak: Soak) -> str:
    """The figures, in lines."""
    first, last = soak.samples[0], soak.samples[-1]
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in soak.outcomes.most_common())
    most = max(sample.files for sample in soak.samples)
    peak = max(sample.megabytes for sample in soak.samples)
    return (
        f"turns: {outcomes}\nreloads: {soak.reloads}\nlost: {last.lost}\n"
        f"megabytes: {first.megabytes:.1f} at first, {peak:.1f} at most, {last.megabytes:.1f} at last\n"
        f"open files: {first.files} at first, {most} at most, {last.files} at last"
    )


def _asked() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--minutes", default=30.0, type=float)
    options.add_argument("--callers", default=200, type=int)
    options.add_argument("--config", type=Path)
    options.add_argument("--memory", default="sqlite")
    options.add_argument("--workers", default=1, type=int)
    options.add_argument("--grown", default=0.1, type=float, help="by how much memory may, in the last third")
    options.add_argument("--plot", type=Path)
    return options.parse_args()


def _plot(samples: Sequence[Sample], file: Path) -> None:
    from matplotlib import pyplot as plt  # noqa: PLC0415 - an extra, for those who want a picture

    minutes = [(sample.at - samples[0].at) / 60 for sample in samples]
    figure, axes = plt.subplots(2, sharex=True)
    axes[0].plot(minutes, [sample.megabytes for sample in samples])
    axes[0].set(ylabel="MB", ylim=(0, None))
    axes[1].plot(minutes, [sample.files for sample in samples])
    axes[1].set(ylabel="open files", xlabel="minutes", ylim=(0, None))
    figure.savefig(file)


def main() -> None:
    """Soaks, prints the figures, and fails where something was lost or has grown."""
    asked = _asked()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder, model, port = Path(name), free_port(), free_port()
        started = [sys.executable, "-m", "bench.model", str(model)]
        log = folder / "served.log"
        stack.enter_context(
            running(started, f"http://127.0.0.1:{model}/", 0, environ={}, log=folder / "model.log")
        )
        config = asked.config or folder / "soak.yaml"
        if asked.config is None:
            config.write_text(_CONFIG)
        address = f"sqlite:{folder / 'memory.db'}" if asked.memory == "sqlite" else asked.memory
        environ = {
            "PORT": str(port),
            "MEMORY_URL": address,
            "UPSTREAM_BASE_URL": f"http://127.0.0.1:{model}/v1",
        }
        serve = [sys.executable, "-m", "proxy", "serve", str(config), "--workers", str(asked.workers)]
        url = f"http://127.0.0.1:{port}/healthz"
        server = stack.enter_context(running(serve, url, 1, environ=environ, log=log))
        soak = Soak(port, server)
        asyncio.run(soak.run(asked.callers, asked.minutes * 60))
        print(told(soak))
        if asked.plot:
            _plot(soak.samples, asked.plot)
        wrong = faults(soak, asked.grown)
        if "Traceback" in log.read_text(errors="replace"):
            wrong.append(f"the log:\n{log.read_text(errors='replace')[-2000:]}")
    sys.exit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
