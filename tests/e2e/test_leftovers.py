"""A turn leaves nothing in memory that only the garbage collector could free."""

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
    assert garbage(proxy, fails, times=8) == {}


PIPELINES = {
    "plain": "",
    "memory tools": ", tools: [memory_recall]",
    "answer filters": ", answer: [speakable, {filler: {after: 10s, phrases: [Well]}}]",
    "comments": ", keep_alive: 10s",
    "hedging": ", hedge: 10s",
}


@pytest.mark.parametrize("has_session", [True, False])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_turn_leaves_nothing_for_the_garbage_collector(
    serve: Serve, tmp_path: Path, pipeline: str, *, stream: bool, has_session: bool
) -> None:
    config = CONFIG.replace("upstreams: [main]", f"upstreams: [main]{PIPELINES[pipeline]}")
    proxy = serve(config, MEMORY_URL=f"sqlite:{tmp_path / 'm.db'}")
    headers = {"X-Session-Id": "s1", "X-User-Id": "ann"} if has_session else {}

    def turn() -> None:
        answer = proxy.chat([{"role": "user", "content": "Hi"}], stream=stream, headers=headers)
        assert answer.status_code == 200

    turn()
    assert garbage(proxy, turn, times=TURNS) == {}


def garbage(proxy: ProxyServer, again: Callable[[], None], times: int) -> Counter[str]:
    """What the collector finds of the product's own, by its type, once something was done again and again.

    Servers of earlier tests may leave something meanwhile, but not each time.
    """
    found = Counter[str]()
    for _ in range(3):
        gc.collect()
        gc.disable()
        try:
            for _ in range(times):
                again()
            found = proxy.run(collected())
        finally:
            gc.enable()
        if not found:
            break
    return found


async def collected() -> Counter[str]:
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        kinds = map(type, gc.garbage)
        return Counter(
            kind.__qualname__ for kind in kinds if str(kind.__module__).startswith(("proxy.", "filters."))
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
