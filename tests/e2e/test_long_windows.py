"""A window that takes long costs its own caller time, and nobody else."""

import asyncio
from importlib import import_module
from typing import Any

import pytest

from tests.proxy_server import ProxyServer
from tests.waiting import until

WINDOW = [{"role": ("user", "assistant")[i % 2], "content": f"Line {i}."} for i in range(601)]


@pytest.mark.parametrize("step", ["proxy.memory.recall.laid", "proxy.chain.run", "proxy.record.after"])
def test_a_long_window_holds_up_nobody_elses_call(
    agora: ProxyServer, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    module, _, name = step.rpartition(".")
    work, others = getattr(import_module(module), name), []

    def worked(*given: Any, **named: Any) -> Any:
        """The same, once the loop has gone on with something else."""
        if not others:
            others.append(agora.run(asyncio.sleep(0, "went on"), within=2))
        return work(*given, **named)

    monkeypatch.setattr(step, worked)
    assert agora.chat(WINDOW, headers={"X-Session-Id": "long"}).status_code == 200
    assert until(lambda: others == ["went on"], 3)
