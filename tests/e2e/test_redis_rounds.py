"""How many rounds of the event loop memory on Redis takes; on a full core each takes milliseconds."""

import asyncio
import statistics
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from proxy.turn import turn
from tests.peers import redis_server
from tests.peers.fake_upstream import FakeUpstream
from tests.proxy_server import ProxyServer
from tests.remembering import settle, user

CONFIG = """
memory: {sessions: "${MEMORY_URL}", deadline: 2s, facts: {upstream: main, model: one}}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", model: one}}
pipelines: {default: {upstreams: [main], request: [restore_history, inject_facts]}}
"""
CALLER = {"X-Session-Id": "s1", "X-User-Id": "ann"}
TURNS = 15


def test_a_session_and_facts_are_read_in_two_rounds(
    upstream: FakeUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are asked for at once; in the second round there are the answers."""
    rounds, taken = 0, list[int]()
    run_once, read_memory = asyncio.BaseEventLoop._run_once, turn.read_memory

    def counted(loop: asyncio.BaseEventLoop) -> None:
        nonlocal rounds
        rounds += 1
        run_once(loop)

    async def watched(*given: Any) -> None:
        before = rounds
        await read_memory(*given)
        taken.append(rounds - before)

    monkeypatch.setattr(asyncio.BaseEventLoop, "_run_once", counted)
    monkeypatch.setattr(uvicorn.Config, "get_loop_factory", lambda _: asyncio.SelectorEventLoop)
    monkeypatch.setattr(turn, "read_memory", watched)
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    with redis_server.single(tmp_path) as server:
        environ = {"UPSTREAM_BASE_URL": upstream.url, "MEMORY_URL": server.url}
        with ProxyServer(path, environ) as proxy:
            for number in range(TURNS):
                assert proxy.chat([user(f"Words {number}", number)], headers=CALLER).status_code == 200
                settle(proxy)
    assert 1 <= statistics.median(taken) <= 2, taken
