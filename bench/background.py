"""Counts the Python calls that a turn takes in the background process, which a busy machine hardly changes.

python -m bench.background [CONFIG] [--list KIND] [--memory redis|URL] [--turns 20,800] [--usable]

A server and its background work run in threads of this process. The calls of the background threads are
counted until no work is left. They are given per turn, for calls of sixteen turns without a pause, which are
archived once, and for late turns of a long call, where each turn is archived separately. With Redis, its
commands and the bytes that it sends are given as well, including those for the server. Without ``--usable``,
the model's answers yield no facts or notes.
"""

import argparse
import asyncio
import itertools
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple, Self

import redis
import uvloop

from bench.calls import ROOT, Caller, PacedModel
from proxy.observe.log import logging_to
from proxy.runtime import Generation
from proxy.server.background import ServersLink
from proxy.server.bus import Inbox
from proxy.settings.build import build_runtime
from proxy.settings.load import load
from tests.peers.fake_upstream import FakeUpstream, Received, Step, answer, completion
from tests.peers.redis_server import RedisServer, closing
from tests.proxy_server import ProxyServer, unread_inbox
from tests.waiting import until

TURNS, LATE, VERY_LATE = 16, 20, 800
_CALLS, _MEASURED = 3, 3
# A server reports what it has written four times a second.
_SETTLED = 0.5


class Cost(NamedTuple):
    """The cost of one turn: calls of Python functions, and commands and bytes of a Redis."""

    calls: Counter[CodeType]
    turns: int
    commands: float = 0
    read: float = 0

    def __str__(self) -> str:
        return (
            f"{self.calls.total() / self.turns:.0f} calls, {self.commands / self.turns:.1f} commands,"
            f" {self.read / self.turns:.0f} bytes"
        )


class Background:
    """The background process of a server, as a thread of this one."""

    def __init__(self, config: Path, environ: dict[str, str], inbox: Inbox) -> None:
        settings = load(config, environ)
        self.runtime = build_runtime(settings, environ)
        self._inbox = inbox
        self._calls: Counter[CodeType] = Counter()
        self._counts = False
        self._thread = threading.Thread(target=lambda: uvloop.run(self._work()))
        self._begun, self._ends = threading.Event(), asyncio.Event()

    def __enter__(self) -> Self:
        # What the server has begun by now is not counted.
        threading.setprofile(self._count)
        self._thread.start()
        self._begun.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ends.set)
        self._thread.join()
        threading.setprofile(None)  # type: ignore[arg-type]

    async def _work(self) -> None:
        self._loop = asyncio.get_running_loop()
        lifeline = os.pipe()
        async with ServersLink(self._inbox, [], lifeline[0]).working(generation := Generation(self.runtime)):
            self._begun.set()
            await self._ends.wait()
        await generation.close()
        self._loop.remove_reader(lifeline[0])
        for end in lifeline:
            os.close(end)

    def of(self, turns: Callable[[], object]) -> Counter[CodeType]:
        """Returns the number of calls until the background work of these turns is done."""
        self.settle()
        self._calls.clear()
        self._counts = True
        turns()
        self.settle()
        self._counts = False
        return self._calls.copy()

    def settle(self) -> None:
        """Waits until no work is left."""
        archiving = self.runtime.memory.archiving if self.runtime.memory else None
        time.sleep(_SETTLED)
        until(lambda: not (archiving and archiving.archivist and archiving.archivist.unsaved))
        time.sleep(_SETTLED)

    def _count(self, frame: FrameType, event: str, _arg: object) -> None:
        if event == "call" and self._counts:
            self._calls[frame.f_code] += 1


class Model(PacedModel):
    """Answers as ``PacedModel`` does.

    A request for facts or notes gets none: as JSON if ``usable``, else as words.
    """

    def __init__(self, *, usable: bool) -> None:
        super().__init__()
        self._usable = usable

    def script(self, request: Received) -> Iterator[Step]:
        """The steps of one answer."""
        if request.method == "POST" and not request.json.get("stream"):
            yield from answer(completion('{"facts": []}' if self._usable else "word " * 8))
            return
        yield from super().script(request)


class Spending:
    """The work of a Redis so far; zero without one."""

    def __init__(self, memory: str) -> None:
        self._client = redis.Redis.from_url(memory) if memory.startswith("redis") else None

    def so_far(self) -> tuple[int, int]:
        """Returns the commands of the Redis, and the bytes that it has sent."""
        if self._client is None:
            return 0, 0
        commands: dict[str, dict[str, int]] = self._client.info("commandstats")
        count = sum(each["calls"] for name, each in commands.items() if name != "cmdstat_info")
        return count, self._client.info("stats")["total_net_output_bytes"]


def measure(config: Path, memory: str, turns: list[int], *, usable: bool) -> dict[str, Cost]:
    """Returns the cost of one turn of each kind."""
    environ = {"MEMORY_URL": memory, "HOST": "127.0.0.1", "PORT": "0"}
    measured: dict[str, Cost] = {}
    with ExitStack() as stack:
        stack.enter_context(logging_to(stack.enter_context(Path(os.devnull).open("w"))))
        upstream, model = stack.enter_context(FakeUpstream()), Model(usable=usable)
        upstream.script = model.script
        environ["UPSTREAM_BASE_URL"] = upstream.url
        inbox = stack.enter_context(unread_inbox())
        server = stack.enter_context(ProxyServer(config, environ, inbox))
        talk(server, Caller(server, model, channel="warm", user="u-0"), 2)
        background = stack.enter_context(Background(config, environ, inbox))
        spending = Spending(memory)

        def typical(work: Callable[[], object], times: int, count: int) -> Cost:
            costs = []
            for _ in range(times):
                background.settle()
                commands, read = spending.so_far()
                calls = background.of(work)
                after = spending.so_far()
                costs.append(Cost(calls, count, after[0] - commands, after[1] - read))
            return sorted(costs, key=lambda one: one.calls.total())[times // 2]

        numbers = itertools.count()

        def call() -> None:
            name = f"room-{next(numbers)}"
            talk(server, Caller(server, model, channel=name, user=name), TURNS)

        measured[f"a turn of a call of {TURNS}"] = typical(call, _CALLS, TURNS)
        caller = Caller(server, model, channel="long", user="long")
        for number in turns:
            talk(server, caller, number - caller.turns)
            measured[f"turn {number}"] = typical(lambda: talk(server, caller, 1), _MEASURED, 1)
    return measured


def talk(server: ProxyServer, caller: Caller, turns: int) -> None:
    """Runs this many turns, and waits until all are written."""
    for _ in range(turns):
        caller.ask()
    until(lambda: not server.app.gauges().queued)


def main() -> None:
    """Prints the cost of each kind of turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", nargs="?", type=Path, default=ROOT / "config" / "agora.yaml")
    parser.add_argument("--list", metavar="KIND", help="name the functions of one kind of turn")
    parser.add_argument("--memory", metavar="URL", help="where sessions are: an empty store, or a new Redis")
    parser.add_argument(
        "--turns", default=[LATE, VERY_LATE], type=lambda text: [*map(int, filter(None, text.split(",")))]
    )
    parser.add_argument("--usable", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        memory = options.memory or f"sqlite:{folder}/background.db"
        if memory == "redis":
            memory = stack.enter_context(closing([RedisServer(Path(folder))]))[0].url
        measured = measure(options.config, memory, options.turns, usable=options.usable)
    for kind, cost in measured.items():
        sys.stdout.write(f"{kind}: {cost}\n")
    for code, count in measured[options.list].calls.most_common(80) if options.list else ():
        file = code.co_filename.removeprefix(f"{ROOT}/").rpartition("site-packages/")[2]
        sys.stdout.write(
            f"{count / measured[options.list].turns:8.1f} {file}:{code.co_firstlineno} {code.co_qualname}\n"
        )


if __name__ == "__main__":
    main()
