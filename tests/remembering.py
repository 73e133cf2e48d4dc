"""Calls over HTTP that are remembered, and what memory holds of them."""

import time
from collections.abc import Callable
from typing import Any

from proxy.memory.session import Entry, decode
from proxy.memory.store import Key
from tests.proxy_server import ProxyServer

CONFIG = """
memory: {sessions: "${MEMORY_URL}"}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default: {upstreams: [main], request: [repair_history, restore_history, restore_interrupted]}
"""
Serve = Callable[..., ProxyServer]


def user(text: str, turn: int | None = None) -> dict[str, Any]:
    return {"role": "user", "content": text} | (
        {} if turn is None else {"turn_id": turn, "timestamp": turn + 1}
    )


def said(text: str, turn: int | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": text} | (
        {} if turn is None else {"turn_id": turn, "timestamp": turn + 1}
    )


def call(proxy: ProxyServer, *messages: dict[str, Any], session: str = "s1", **fields: Any) -> Any:
    return proxy.chat(list(messages), headers={"X-Session-Id": session}, **fields)


def held(proxy: ProxyServer, session: str = "s1", tenant: str = "default") -> list[Entry]:
    """What memory holds once all that was said is written."""
    memory = proxy.app.memory
    assert memory
    time.sleep(0.1)  # the last byte of an answer overtakes what is written down of it
    end = time.monotonic() + 3
    while proxy.run(_waiting(memory)) and time.monotonic() < end:
        time.sleep(0.01)
    blob = proxy.run(memory.store.read(Key(tenant, session)))
    return list(decode(blob.blob).entries) if blob else []


async def _waiting(memory: Any) -> int:
    return len(memory.recorder._waiting)


def texts(entries: list[Entry]) -> list[tuple[str, Any]]:
    return [(entry.role, entry.content) for entry in entries]
