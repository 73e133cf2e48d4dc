"""What a turn leaves behind: nothing that only the garbage collector could find."""

import gc
from collections import Counter
from pathlib import Path

import pytest

from tests.proxy_server import ProxyServer
from tests.remembering import CONFIG, Serve

TURNS = 30
OURS = {
    "RequestResponseCycle",
    "Chunked",
    "Reply",
    "Watch",
    "Fallback",
    "Question",
    "Answer",
    "Passage",
    "Said",
}


@pytest.mark.parametrize("memory", [True, False])
def test_a_turn_leaves_nothing_for_the_garbage_collector(serve: Serve, tmp_path: Path, memory: bool) -> None:
    proxy = serve(CONFIG, MEMORY_URL=f"sqlite:{tmp_path / 'm.db'}")
    turn(proxy, memory=memory)
    gc.collect()
    gc.disable()
    try:
        before = proxy.run(alive())
        for _ in range(TURNS):
            turn(proxy, memory=memory)
        left = proxy.run(alive()) - before
    finally:
        gc.enable()
    # The page may show some of the turns, and one connection may still hold its last request.
    assert all(count < 3 for name, count in left.items() if name != "Watch"), left


def turn(proxy: ProxyServer, *, memory: bool) -> None:
    headers = {"X-Session-Id": "s1"} if memory else {}
    assert proxy.chat([{"role": "user", "content": "Hi"}], stream=True, headers=headers).status_code == 200


async def alive() -> Counter[str]:
    return Counter(name for one in gc.get_objects() if (name := type(one).__name__) in OURS)
