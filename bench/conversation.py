"""A long call, turn by turn: does each earlier turn reach the model once, and what does a turn cost?

python -m bench.conversation [--turns 300] [--window 100 20] [--plot conversation.png]

Runs with and without turn numbers, on SQLite and on Redis (where a redis-server is found), and with summaries
that fail half the time. The engine replays the newest 8 messages. A plot needs matplotlib.
"""

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.picture import picture
from tests.long_call import LongCall, config, model, noted, settle, share, tokens, unchanged
from tests.peers.fake_upstream import FakeUpstream, answer
from tests.peers.redis_server import RedisServer
from tests.proxy_server import ProxyServer

ENGINE_WINDOW = 8
BUSY = answer({"error": {"message": "Busy"}}, 503)


def allowed(most: int, keep: int) -> float:
    """Which share of all tokens can stand in an unchanged prefix, were all messages of one size."""
    turns = (most - keep) / 2
    sent = turns * keep + turns * (turns + 1)
    return 1 - (2 * turns + keep) / sent


@contextmanager
def address(kind: str, folder: Path) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:{folder / 'sessions.db'}"
        return
    server = RedisServer(folder)
    try:
        yield server.url
    finally:
        server.close()


def run(kind: str, *, turns: int, window: tuple[int, int], numbered: bool, fails: bool) -> LongCall:
    """One call, checked at every turn."""
    busy = itertools.cycle([fails, False])
    with tempfile.TemporaryDirectory() as folder, FakeUpstream() as upstream:
        upstream.script = model(lambda request: BUSY if next(busy) else noted(request))
        path = Path(folder) / "bench.yaml"
        path.write_text(config(*window))
        with address(kind, Path(folder)) as url:
            environ = {"MEMORY_URL": url, "UPSTREAM_BASE_URL": upstream.url}
            with ProxyServer(path, environ) as proxy:
                call = LongCall(proxy, upstream, numbered=numbered, size=ENGINE_WINDOW)
                for _ in range(turns):
                    call.check(call.turn())
                    settle(proxy, within=2)
                call.proxy = call.upstream = None
                return call


def plot(calls: dict[str, LongCall], path: Path) -> None:
    from matplotlib import pyplot as plt  # noqa: PLC0415 - seldom wanted, and large

    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(9, 6))
    for name, call in calls.items():
        sizes = [tokens(prompt) for prompt in call.prompts]
        shares = [unchanged(a, b) / tokens(b) for a, b in itertools.pairwise(call.prompts)]
        above.plot(sizes, label=name, linewidth=1)
        below.plot(range(1, len(sizes)), shares, linewidth=1)
    above.plot(told_all(next(iter(calls.values()))), label="the whole talk", color="grey", linestyle=":")
    above.set_ylabel("prompt tokens")
    above.legend(fontsize=8)
    below.set_ylabel("share in an unchanged prefix")
    below.set_xlabel("turn")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def told_all(call: LongCall) -> list[int]:
    """What the prompts would have, were all of the talk sent."""
    sizes = list(itertools.accumulate(tokens([line]) for line in call.lines))
    return sizes[::2]


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--turns", type=int, default=300)
    options.add_argument("--window", type=int, nargs=2, default=(100, 20), metavar=("MAX", "KEEP"))
    options.add_argument("--plot", type=picture)
    asked: Any = options.parse_args()
    calls: dict[str, LongCall] = {}
    least = allowed(*asked.window)
    print(f"{asked.turns} turns, window {asked.window}; its arithmetic allows {least:.1%}")
    for kind, numbered, fails in itertools.product(("sqlite", "redis"), (True, False), (False, True)):
        name = f"{kind}, {'numbered' if numbered else 'no numbers'}{', failing' if fails else ''}"
        started = time.monotonic()
        call = run(kind, turns=asked.turns, window=tuple(asked.window), numbered=numbered, fails=fails)
        calls[name] = call
        sizes = [tokens(prompt) for prompt in call.prompts]
        third = len(sizes) // 3
        print(
            f"{name:28} each turn once; tokens per turn {sum(sizes) / len(sizes):6.0f}, at most {max(sizes)}"
            f" (middle third {max(sizes[third : 2 * third])}, last {max(sizes[2 * third :])});"
            f" unchanged prefix {share(call.prompts):.1%}; {time.monotonic() - started:.0f} s"
        )
    if asked.plot:
        plot(calls, asked.plot)


if __name__ == "__main__":
    main()
