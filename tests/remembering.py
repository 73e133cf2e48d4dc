"""Calls over HTTP that are remembered, and what memory holds of them."""

from typing import Any

from proxy.memory.session import Entry, decode
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.session_store import SessionStore
from proxy.memory.stores.store import Key
from tests.proxy_server import ProxyServer
from tests.waiting import until

IMPATIENT = """
memory: {sessions: "${MEMORY_URL}"}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default: {upstreams: [main], request: [repair_history, restore_history, restore_interrupted]}
"""
"""A call waits for memory as briefly as it does by default: 50 ms."""

CONFIG = IMPATIENT.replace("memory: {", "memory: {deadline: 5s, ")
"""A call waits for memory even on a slow machine: for what is not about time."""


def sessions(driver: Any, **options: Any) -> SessionStore:
    """Sessions over a driver, which may do only what a test needs of it."""
    return SessionStore(driver, Plain(), **options)


def user(text: str, turn: int | None = None) -> dict[str, Any]:
    return {"role": "user", "content": text} | (
        {} if turn is None else {"turn_id": turn, "timestamp": turn + 1}
    )


def assistant_message(text: str, turn: int | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": text} | (
        {} if turn is None else {"turn_id": turn, "timestamp": turn + 1}
    )


def call(proxy: ProxyServer, *messages: dict[str, Any], session: str = "s1", **fields: Any) -> Any:
    return proxy.chat(list(messages), headers={"X-Session-Id": session}, **fields)


def settle(proxy: ProxyServer) -> None:
    """Waits until all turns are written, and archived if there is an archive."""
    memory = proxy.app.memory
    assert memory
    assert until(lambda: proxy.run(_is_written(proxy)))
    if memory.archiving:
        proxy.run(memory.archiving.archivist.idle(), within=60)


def stored_entries(proxy: ProxyServer, session: str = "s1", tenant: str = "default") -> list[Entry]:
    """Returns the entries of a session in its store, once all turns are written."""
    memory = proxy.app.memory
    assert memory
    until(lambda: proxy.run(_is_written(proxy)))
    blob = proxy.run(memory.store.read(Key(tenant, session), background=True))
    return list(decode(blob.blob).entries) if blob else []


async def _is_written(proxy: ProxyServer) -> bool:
    """The last byte of an answer overtakes what is written down of it; until then its turn is in flight."""
    now = proxy.app.gauges()
    return not (now.in_flight or now.queued)


def texts(entries: list[Entry]) -> list[tuple[str, Any]]:
    return [(entry.role, entry.content) for entry in entries]
