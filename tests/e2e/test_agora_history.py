"""Agora's message lists from its documentation, as requests and as imported sessions."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.peers.fake_upstream import FakeUpstream, sse, stream_of
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import CONFIG, stored_entries

REQUEST = json.loads((Path(__file__).parents[1] / "golden" / "agora_doc_request.json").read_text())
HISTORY = [
    {"role": "user", "content": "Where is my order?", "speech_start_ms": 1715000001200, "speech_end_ms": 1},
    {"role": "assistant", "content": "Its number, please?", "speech_start_ms": 1715000004100},
    {"role": "user", "content": "12345.", "speech_start_ms": 1715000005200, "speech_algorithmic_delay": 120},
    {"role": "assistant", "content": "It is on its way."},
    {"role": "user", "content": "[think API injected] User level: VIP"},
    {"role": "user", "content": "User level: gold"},
]
PATH = "/v1/memory/sessions/room"


@pytest.fixture
def proxy(serve: Serve, upstream: FakeUpstream) -> ProxyServer:
    upstream.says(*sse(stream_of("Here I am.")))
    return serve(CONFIG)


def contents(proxy: ProxyServer) -> list[dict[str, Any]]:
    return proxy.client.get(PATH).json()["contents"]


def test_an_answer_is_of_the_turn_that_the_request_asks_for(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    assert (REQUEST["turn_id"], REQUEST["messages"][-1]["role"]) == (4, "assistant")
    proxy.client.post("/chat/completions", json={**REQUEST, "session_id": "room", "stream": True})
    stored_entries(proxy, "room")
    *before, answer = contents(proxy)
    assert before == REQUEST["messages"]
    assert (answer["content"], answer["turn_id"]) == ("Here I am.", 4)
    entries = stored_entries(proxy, "room")
    carried = proxy.client.put(PATH, json={"contents": contents(proxy)})
    assert carried.status_code in {200, 201}
    assert {entry.call for entry in stored_entries(proxy, "room")} == {0}
    assert [entry.turn_id for entry in stored_entries(proxy, "room")] == [entry.turn_id for entry in entries]


def test_an_answer_that_the_engine_shows_next_is_the_one_that_is_held(proxy: ProxyServer) -> None:
    body = {"session_id": "room", "stream": True, "model": "m"}
    proxy.client.post("/chat/completions", json={**REQUEST, **body})
    stored_entries(proxy, "room")
    heard = {"role": "assistant", "content": "Here I am.", "turn_id": 4, "metadata": {"source": "llm"}}
    asked = {"role": "user", "content": "Good.", "turn_id": 5, "metadata": {"source": "asr"}}
    window = [*REQUEST["messages"], heard, asked]
    proxy.client.post("/chat/completions", json={**body, "messages": window, "turn_id": 5})
    stored_entries(proxy, "room")
    said = [(one["content"], one["turn_id"]) for one in contents(proxy)]
    assert said[len(REQUEST["messages"]) :] == [("Here I am.", 4), ("Good.", 5), ("Here I am.", 5)]


def test_a_history_is_stored_as_its_notice_is(proxy: ProxyServer) -> None:
    assert proxy.client.put(PATH, json={"contents": HISTORY}).status_code in {200, 201}
    stored = contents(proxy)
    assert [one.get("timestamp") for one in stored[:4]] == [1715000001200, 1715000004100, 1715000005200, None]
    assert [(one.get("metadata") or {}).get("source") for one in stored] == [None] * 4 + ["command"] * 2
