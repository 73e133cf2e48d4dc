"""Requests that are no part of the talk leave nothing, whichever way they are marked."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Address
from tests.peers.fake_upstream import FakeUpstream, sse, stream_of
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import settle

CONFIG = """
memory:
  sessions: "${MEMORY_URL}"
  deadline: 5s
  archive: {url: "${ARCHIVE_URL}"}
  facts: {upstream: main, model: small, pause: 100ms}
traces: {keep: 100, content: true}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default: {upstreams: [main], request: [repair_history, restore_history, inject_facts, recall]}
"""
WHOSE = {"session_id": "room", "user_id": "ann"}
MARKED: dict[str, dict[str, Any]] = {
    "header": {"headers": {"X-Background": "true"}},
    "query": {"params": {"background": "1"}},
    "metadata": {"metadata": {"background": True}},
    "metadata as text": {"metadata": {"background": "true"}},
    "Agora's params, merged": {"background": True},
    "Agora's params, nested": {"params_field": {"background": True}},
    "metadata in Agora's params": {"params_field": {"metadata": {"background": True}}},
    "Volcengine's custom": {"custom": '{"background": true}'},
    "Alibaba's extendData": {"extendData": "{'background': True}"},
}
UNMARKED: dict[str, dict[str, Any]] = {
    "header": {"headers": {"X-Background": "false"}},
    "metadata": {"metadata": {"background": False}},
    "body": {"background": "no"},
}


@pytest.fixture(params=["sqlite", "redis", "postgresql", "memory"])
def proxy(request: pytest.FixtureRequest, serve: Serve, address: Address, tmp_path: Path) -> ProxyServer:
    return serve(CONFIG, MEMORY_URL=address(request.param), ARCHIVE_URL=f"sqlite:{tmp_path / 'archive.db'}")


def ask(proxy: ProxyServer, text: str, **more: Any) -> None:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": text, "metadata": {"user": "ann"}}],
        **WHOSE,
    }
    headers, query = more.pop("headers", {}), more.pop("params", {})
    if "params_field" in more:
        more["params"] = more.pop("params_field")
    got = proxy.client.post("/v1/chat/completions", json=body | more, headers=headers, params=query)
    assert got.status_code == 200, got.text
    settle(proxy)


def everything(proxy: ProxyServer) -> str:
    """Returns all data of a user that can be listed, searched or exported."""
    client = proxy.client
    answers = [
        client.get("/v1/memory/sessions"),
        client.get("/v1/memory/sessions?archived=true"),
        client.get("/v1/memory/users/ann/export"),
        client.get("/v1/memory/users/ann/facts"),
        client.get("/v1/memory/users/ann/system_messages"),
        client.post("/v1/memory/search", json={"user": "ann", "query": "heartbeat scarecrow"}),
        client.get("/conversations"),
        client.get("/users"),
    ]
    return "\n".join(answer.text for answer in answers)


def test_they_leave_nothing_and_see_nothing(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    upstream.script = lambda _: sse(stream_of("A scarecrow."))
    for marked in MARKED.values():
        ask(proxy, "heartbeat", **marked)
    shown = everything(proxy)
    assert "heartbeat" not in shown and "scarecrow" not in shown
    assert "room" not in shown
    assert proxy.client.get("/v1/memory/sessions/room").status_code == 404
    ask(proxy, "Good morning.")
    before = proxy.client.get("/v1/memory/sessions/room").text
    for name, marked in MARKED.items():
        ask(proxy, "heartbeat", **marked)
        prompts = [asked.json["messages"] for asked in upstream.requests if asked.json["model"] == "m"]
        assert prompts[-1] == [{"role": "user", "content": "heartbeat"}], name
        assert proxy.client.get("/v1/memory/sessions/room").text == before, name
    exported = proxy.client.get("/v1/memory/users/ann/export")
    assert "Good morning." in exported.text and "heartbeat" not in exported.text


def test_what_says_that_it_is_none_is_remembered(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    upstream.script = lambda _: sse(stream_of("Yes."))
    for name, unmarked in UNMARKED.items():
        ask(proxy, "heartbeat", **unmarked, session_id=name)
        assert "heartbeat" in proxy.client.get(f"/v1/memory/sessions/{name}").text, name
