"""What a turn leaves behind: nothing that only the garbage collector could find."""

import gc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.peers.fake_upstream import (
    CLOSE,
    END,
    HEAD,
    RESET,
    ROLE,
    FakeUpstream,
    Step,
    answer,
    chunk,
    delta,
    event,
    sse,
)
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import CONFIG

TURNS = 30
OURS = {
    "Request",
    "Reply",
    "Watch",
    "Dispatch",
    "Question",
    "Answer",
    "RelayedStream",
    "Said",
    "Call",
    "Transcript",
}
HALF = ROLE + delta(content="half a ")
ERROR = {"error": {"message": "No", "type": "x", "param": None, "code": None}}
FAILURES: dict[str, list[Step]] = {
    "refused": answer(ERROR, 400),
    "refused as an answer": answer(ERROR),
    "away": [RESET],
    "says nothing": [HEAD, END],
    "breaks off": [HEAD, chunk(HALF), CLOSE],
    "an error in mid-stream": sse(HALF + event(**ERROR)),
    "no JSON in mid-stream": sse(HALF + b"data: {\n\n"),
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_turn_that_fails_leaves_nothing_either(
    serve: Serve, upstream: FakeUpstream, tmp_path: Path, failure: str, stream: bool
) -> None:
    proxy = serve(CONFIG, MEMORY_URL=f"sqlite:{tmp_path / 'm.db'}", UPSTREAM_BASE_URL=upstream.url)
    upstream.says(*FAILURES[failure])

    def fails() -> None:
        proxy.chat([{"role": "user", "content": "Hi"}], stream=stream, headers={"X-Session-Id": "s1"})

    fails()
    left = grown(proxy, fails, times=8)
    assert all(count < 3 for name, count in left.items() if name != "Watch"), left


@pytest.mark.parametrize("memory", [True, False])
def test_a_turn_leaves_nothing_for_the_garbage_collector(serve: Serve, tmp_path: Path, memory: bool) -> None:
    proxy = serve(CONFIG, MEMORY_URL=f"sqlite:{tmp_path / 'm.db'}")
    turn(proxy, memory=memory)
    left = grown(proxy, lambda: turn(proxy, memory=memory))
    # The page may show some of the turns, and one connection may still hold its last request.
    assert all(count < 3 for name, count in left.items() if name != "Watch"), left


def grown(proxy: ProxyServer, again: Callable[[], None], times: int = TURNS) -> Counter[str]:
    """What is there more of, where no collector comes, once something was done again and again."""
    gc.collect()
    gc.disable()
    try:
        before = proxy.run(alive())
        for _ in range(times):
            again()
        return proxy.run(alive()) - before
    finally:
        gc.enable()


def turn(proxy: ProxyServer, *, memory: bool) -> None:
    headers = {"X-Session-Id": "s1"} if memory else {}
    assert proxy.chat([{"role": "user", "content": "Hi"}], stream=True, headers=headers).status_code == 200


async def alive() -> Counter[str]:
    return Counter(name for one in gc.get_objects() if (name := type(one).__name__) in OURS)
