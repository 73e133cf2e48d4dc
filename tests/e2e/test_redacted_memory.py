"""If a pipeline redacts, memory adds no unredacted words to its prompts."""

import json
from pathlib import Path

import pytest

from tests.peers.fake_upstream import DONE, ROLE, FakeUpstream, answer, completion, delta, sse, stream_of
from tests.proxy_server import ProxyServer, Serve
from tests.waiting import awaited

CARD = "4111 1111 1111 1111"
CONFIG = """
memory:
  sessions: "${MEMORY_URL}"
  deadline: 5s
  window: {max_messages: 4, keep_messages: 2}
  summaries: {upstream: main}
  facts: {upstream: main, model: m, pause: 100ms}
  recall: {embeddings: {upstream: main, model: e}}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default:
    upstreams: [main]
    request: [restore_history, inject_summaries, inject_facts, {redact: {kinds: [card]}}]
    tools: [memory_recall]
"""
WHO = {"x-session-id": "s1", "x-user-id": "ann"}


@pytest.fixture
def proxy(serve: Serve, upstream: FakeUpstream, tmp_path: Path) -> ProxyServer:
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


def test_a_model_that_is_asked_in_the_background_is_told_no_more(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "pay", "arguments": f'{{"card": "{CARD}"}}'}}
    window = [
        {"role": "user", "content": f"Take {CARD}."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": f"Paid with {CARD}."},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Thank you."},
    ]
    upstream.script = lambda request: sse(stream_of("Well.")) if request.json.get("stream") else answer({})
    proxy.chat(window, headers=WHO, stream=True)

    def reaches_model(mark: str) -> bool:
        return any(mark in request.body.decode() for request in upstream.requests)

    memory = proxy.app.memory
    assert memory is not None and memory.archiving is not None
    awaited(lambda: reaches_model("<said>"))
    proxy.run(memory.archiving.archivist.idle())
    awaited(lambda: reaches_model("<transcript>") and reaches_model('"input"'))
    assert reaches_model("Take [card].") and reaches_model("Paid with [card].")
    assert not reaches_model(CARD)
