"""Checks in a long call that each earlier turn reaches the model once, and measures the cost of a turn.

python -m bench.conversation [--turns 300] [--window 60 10] [--plot conversation.png]

Runs with and without turn numbers, on SQLite and on Redis (if a redis-server is found), and with summaries
that fail half the time. The platform replays the newest 8 messages, and the caller states a lasting fact in
every tenth. The price counts tokens of an unchanged prefix as a tenth, and tokens of background requests in
full, including the notes for the next call. A plot needs matplotlib.
"""

import argparse
import itertools
import json
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.table import picture
from filters.tokens import in_text
from tests.long_call import (
    CONFIG,
    LongCall,
    config,
    is_notes,
    model,
    noted,
    sentence,
    settle,
    share,
    tokens,
    unchanged,
)
from tests.peers.fake_upstream import FakeUpstream, Received, Step, answer
from tests.peers.redis_server import RedisServer
from tests.peers.scripted_model import fact, is_extraction, lines, listed
from tests.proxy_server import ProxyServer

ENGINE_WINDOW = 8
TELLS = re.compile(r"user\d*0 ")
BUSY = answer({"error": {"message": "Busy"}}, 503)
NOTES = " ".join(map(sentence, range(7)))
"""What the notes of a summary say beside the marks of its turns: a hundred words, as models write them."""
FACTS = "  facts: {upstream: main, model: notes}\n"
LAST_CALL = "      - inject_summaries\n      - inject_last_call\n"
SETTINGS = CONFIG.replace("upstreams:", f"{FACTS}upstreams:", 1).replace(
    "      - inject_summaries\n", LAST_CALL
)


def allowed(most: int, keep: int) -> float:
    """Returns the largest possible share of tokens in an unchanged prefix, with messages of one size."""
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


class Played(NamedTuple):
    """A finished call, and the tokens of background requests for notes and for facts."""

    call: LongCall
    notes: int
    facts: int

    @property
    def paid(self) -> float:
        """Tokens that each turn is billed for; those of an unchanged prefix count a tenth."""
        prompts = self.call.prompts
        cached = sum(unchanged(a, b) for a, b in itertools.pairwise(prompts))
        return (sum(map(tokens, prompts)) - 0.9 * cached + self.notes + self.facts) / len(prompts)

    @property
    def share(self) -> float:
        """Tokens of background requests for each token of the call's prompts."""
        return (self.notes + self.facts) / sum(map(tokens, self.call.prompts))


def facts_of(request: Received) -> Iterable[Step]:
    """Returns a fact for each message that states one."""
    telling = [line for line in lines(request, "said") if TELLS.match(line["text"])]
    return listed([fact(line["text"][:120], line["number"]) for line in telling])


def request_tokens(request: Received) -> int:
    """Returns the tokens of a request, including the form that it asks for."""
    form = request.json.get("response_format")
    return tokens(request.json["messages"]) + (in_text(json.dumps(form)) if form else 0)


def run(kind: str, *, turns: int, window: tuple[int, int], numbered: bool, fails: bool) -> Played:
    """Runs one call, and checks each turn."""
    busy = itertools.cycle([fails, False])

    def background(request: Received) -> Iterable[Step]:
        if next(busy):
            return BUSY
        return facts_of(request) if is_extraction(request) else noted(request, NOTES)

    with tempfile.TemporaryDirectory() as folder, FakeUpstream() as upstream:
        upstream.script = model(background)
        path = Path(folder) / "bench.yaml"
        path.write_text(config(*window, SETTINGS))
        with address(kind, Path(folder)) as url:
            environ = {"MEMORY_URL": url, "UPSTREAM_BASE_URL": upstream.url}
            with ProxyServer(path, environ) as proxy:
                call = LongCall(proxy, upstream, numbered=numbered, size=ENGINE_WINDOW, user="ann")
                for _ in range(turns):
                    call.check(call.turn())
                    settle(proxy)
                # The next call ends this one, and notes on it are written.
                LongCall(proxy, upstream, size=ENGINE_WINDOW, user="ann", session="next", first=turns).turn()
                settle(proxy)
                call.proxy = call.upstream = None
        jobs = [request for request in upstream.requests if is_notes(request)]
        facts = sum(request_tokens(request) for request in jobs if is_extraction(request))
        return Played(call, sum(map(request_tokens, jobs)) - facts, facts)


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
    """The tokens of all prompts if each contained the whole conversation."""
    sizes = list(itertools.accumulate(tokens([line]) for line in call.lines))
    return sizes[::2]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--window", type=int, nargs=2, default=(60, 10), metavar=("MAX", "KEEP"))
    parser.add_argument("--plot", type=picture)
    options: Any = parser.parse_args()
    calls: dict[str, LongCall] = {}
    least = allowed(*options.window)
    print(f"{options.turns} turns, window {options.window}; its arithmetic allows {least:.1%}")
    for kind, numbered, fails in itertools.product(("sqlite", "redis"), (True, False), (False, True)):
        name = f"{kind}, {'numbered' if numbered else 'no numbers'}{', failing' if fails else ''}"
        started = time.monotonic()
        played = run(kind, turns=options.turns, window=tuple(options.window), numbered=numbered, fails=fails)
        calls[name] = call = played.call
        sizes = [tokens(prompt) for prompt in call.prompts]
        third = len(sizes) // 3
        print(
            f"{name:28} each turn once; tokens per turn {sum(sizes) / len(sizes):6.0f}, at most {max(sizes)}"
            f" (middle third {max(sizes[third : 2 * third])}, last {max(sizes[2 * third :])});"
            f" unchanged prefix {share(call.prompts):.1%};"
            f" background {played.share:.1%} of them (notes {played.notes}, facts {played.facts}),"
            f" paid {played.paid:.0f} a turn; {time.monotonic() - started:.0f} s"
        )
    if options.plot:
        plot(calls, options.plot)


if __name__ == "__main__":
    main()
