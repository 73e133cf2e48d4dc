"""Where a chain redacts, memory tells the model nothing in plain words either."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fake_upstream import DONE, ROLE, FakeUpstream, answer, completion, delta, sse, stream_of
from tests.proxy_server import ProxyServer

CARD = "4111 1111 1111 1111"
CONFIG = """
memory:
  sessions: "${MEMORY_URL}"
  deadline: 5s
  summaries: {upstream: main}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default:
    upstreams: [main]
    request: [restore_history, inject_summaries, inject_facts, {redact: {kinds: [card]}}]
    tools: [memory_recall]
"""
WHO = {"x-session-id": "s1", "x-user-id": "ann"}


@pytest.fixture
def proxy(serve: Callable[..., ProxyServer], upstream: FakeUpstream, tmp_path: Path) -> ProxyServer:
    upstream.script = lambda _: sse(stream_of("Well."))
    proxy = serve(CONFIG, MEMORY_URL=f"sqlite:{tmp_path / 'memory.db'}")
    proxy.client.post("/v1/memory/users/ann/facts", json={"text": f"Pays with {CARD}."}).raise_for_status()
    return proxy


def asked(proxy: ProxyServer) -> None:
    message = {"role": "user", "content": "Which card do I have?"}
    assert proxy.chat([message], headers=WHO, stream=True).status_code == 200


def test_facts_and_summaries_are_redacted(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    upstream.script = lambda _: answer(completion(f"Gave {CARD}."))
    notes = {"messages": [{"role": "user", "content": "Hello."}], "fallback_model": "m"}
    proxy.client.post("/v1/memory/sessions/s1/summaries", json=notes).raise_for_status()
    upstream.script = lambda _: sse(stream_of("Well."))
    asked(proxy)
    shown = upstream.last.json["messages"]
    assert "Gave [card]." in str(shown) and "Pays with [card]." in str(shown)
    assert CARD not in str(shown)


def test_what_a_tool_finds_is_redacted(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    function = {"name": "memory_recall", "arguments": json.dumps({"query": "pays with"})}
    call = {"index": 0, "id": "call_1", "type": "function", "function": function}
    rounds = iter([sse(ROLE + delta(tool_calls=[call]) + delta(finish="tool_calls") + DONE)])
    upstream.script = lambda _: next(rounds, sse(stream_of("So.")))
    asked(proxy)
    (found,) = json.loads(upstream.last.json["messages"][-1]["content"])["found"]
    assert found["text"] == "Pays with [card]."
