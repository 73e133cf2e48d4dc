"""On Redis without SQL facts and tools work, and what needs an archive says that it is missing."""

import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from proxy.memory.facts.mem0 import Mem0
from proxy.settings import build
from proxy.settings import memory as memory_settings
from tests.e2e.conftest import Address
from tests.memory.mem0_library import Library
from tests.peers.fake_upstream import DONE, ROLE, FakeUpstream, Step, delta, sse, stream_of
from tests.peers.scripted_model import fact, model, says
from tests.proxy_server import ProxyServer, Serve
from tests.waiting import awaited

CONFIG = """
memory:
  sessions: "${MEMORY_URL}"
  encryption: ["${KEY:-}"]
  deadline: 2s
  facts: {upstream: main, model: notes, pause: 200ms}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default: {upstreams: [main], request: [repair_history, restore_history, inject_facts]}
  recalling: {upstreams: [main], request: [restore_history, recall]}
  tooled: {upstreams: [main], tools: [memory_store, memory_recall, memory_forget]}
"""
ANN = "/v1/memory/users/ann"
KEY = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="


@pytest.fixture(params=["", KEY], ids=["plain", "encrypted"])
def proxy(request: pytest.FixtureRequest, serve: Serve, address: Address) -> ProxyServer:
    return serve(CONFIG, MEMORY_URL=address("redis"), KEY=request.param)


def calling(name: str, **arguments: str) -> Iterable[Step]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"index": 0, "id": "call_1", "type": "function", "function": function}
    return sse(ROLE + delta(tool_calls=[call]) + delta(finish="tool_calls") + DONE)


def find(said: Any, _known: Any) -> Any:
    return [fact(line["text"], line["number"]) for line in said if line["text"].startswith("I ")]


def say(proxy: ProxyServer, text: str, *, session: str = "s1", user: str = "ann", pipeline: str = "") -> Any:
    path = f"/pipelines/{pipeline}/v1/chat/completions" if pipeline else "/chat/completions"
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": True}
    headers = {"X-Session-Id": session, "X-User-Id": user}
    got = proxy.client.post(path, json=body, headers=headers)
    assert got.status_code == 200, got.text
    return got


def fact_texts(proxy: ProxyServer, user: str = "ann") -> list[str]:
    data = proxy.client.get(f"/v1/memory/users/{user}/facts").json()["data"]
    return [one["text"] for one in data]


def test_facts_are_found_told_corrected_exported_and_forgotten(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    upstream.script = model(find, says("Noted."))
    say(proxy, "I have a dog.")
    awaited(lambda: fact_texts(proxy) == ["I have a dog."])
    got = say(proxy, "Hello?", session="s2")
    assert "x-turnkeeper-degraded" not in got.headers
    head, newest = upstream.requests[-1].json["messages"]
    assert "I have a dog." in head["content"]
    assert newest["content"] == "Hello?"
    say(proxy, "Hello?", session="s3", user="bob")
    assert "dog" not in str(upstream.requests[-1].json["messages"])

    client = proxy.client
    (stored,) = client.get(f"{ANN}/facts").json()["data"]
    assert stored["evidence"] == ["s1/0/0"]
    changed = client.patch(f"{ANN}/facts/{stored['id']}", json={"text": "I have two dogs."})
    assert changed.json()["text"] == "I have two dogs."
    assert [one["text"] for one in client.get(f"{ANN}/export").json()["facts"]] == ["I have two dogs."]
    assert client.delete(ANN).status_code == 204
    assert fact_texts(proxy) == []
    assert client.get(f"{ANN}/export").json()["facts"] == []


def test_the_model_finds_and_forgets_what_it_stored(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    def answers(*scripts: Iterable[Step]) -> None:
        left: Iterator[Iterable[Step]] = iter(scripts)
        upstream.script = lambda _: next(left)

    def result() -> Any:
        return json.loads(upstream.requests[-1].json["messages"][-1]["content"])

    answers(calling("memory_store", text="Has a dog called Rex."), sse(stream_of("Yes.")))
    say(proxy, "My dog is called Rex.", pipeline="tooled")
    stored = result()
    assert stored["stored"] is True
    answers(calling("memory_recall", query="What is the dog called?"), sse(stream_of("Rex.")))
    say(proxy, "What is he called?", session="s2", pipeline="tooled")
    assert [(one["text"], one["id"]) for one in result()["found"]] == [
        ("Has a dog called Rex.", stored["id"])
    ]
    answers(calling("memory_recall", query="dog"), sse(stream_of("No.")))
    say(proxy, "And mine?", session="s3", user="bob", pipeline="tooled")
    assert result()["found"] == []
    answers(calling("memory_forget", id=stored["id"]), sse(stream_of("Yes.")))
    say(proxy, "Forget him.", session="s4", pipeline="tooled")
    assert result() == {"forgotten": True}
    assert fact_texts(proxy) == []


def test_with_mem0_and_no_sql_the_model_finds_what_it_stored(
    serve: Serve, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library is stood in for here, and real in the tests of clients."""
    library = Library()
    monkeypatch.setattr(build, "open_mem0", lambda _: Mem0(library))
    monkeypatch.setattr(memory_settings, "find_spec", lambda _: object())
    config = CONFIG.replace("pause: 200ms", "pause: 200ms, store: mem0")
    proxy = serve(config, MEMORY_URL="memory:", KEY="")
    left = iter([calling("memory_store", text="Has a dog called Rex."), sse(stream_of("Yes."))])
    upstream.script = lambda _: next(left)
    say(proxy, "My dog is called Rex.", pipeline="tooled")
    awaited(lambda: library.rows)
    again = iter([calling("memory_recall", query="What is the dog called?"), sse(stream_of("Rex."))])
    upstream.script = lambda _: next(again)
    say(proxy, "What is he called?", session="s2", pipeline="tooled")
    (found,) = json.loads(upstream.requests[-1].json["messages"][-1]["content"])["found"]
    assert found["text"] == "Has a dog called Rex."
    assert proxy.client.delete(ANN).status_code == 204
    assert library.rows == {}


def test_recall_and_search_say_that_there_is_no_archive(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    upstream.script = model(find, says("Noted."))
    assert say(proxy, "Hello?", pipeline="recalling").headers["x-turnkeeper-degraded"] == "recall"
    proxy.client.post(f"{ANN}/facts", json={"text": "Has a dog called Rex."})
    got = proxy.client.post("/v1/memory/search", json={"user": "ann", "query": "dog"})
    assert [one["text"] for one in got.json()["results"]] == ["Has a dog called Rex."]
    assert got.headers["x-turnkeeper-degraded"] == "recall"


def test_everybody_of_whom_anything_is_kept_is_listed(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    upstream.script = model(find, says("Noted."))

    def page(**query: Any) -> dict[str, Any]:
        got = proxy.client.get("/v1/memory/users", params=query)
        assert got.status_code == 200, got.text
        return got.json()

    def listed() -> dict[str, tuple[int, int]]:
        return {one["id"]: (one["facts"], one["sessions"]) for one in page()["data"]}

    assert page() == {"object": "list", "data": [], "has_more": False, "last_id": None}
    for session, user in (("s1", "ann"), ("s2", "ann"), ("s3", "bob")):
        say(proxy, "Hello?", session=session, user=user)
    assert listed() == {"ann": (0, 2), "bob": (0, 1)}, "just after the last byte"
    kept = proxy.client.post("/v1/memory/users/dora/facts", json={"text": "Has a dog."}).json()
    assert listed() == {"ann": (0, 2), "bob": (0, 1), "dora": (1, 0)}
    seen = {one["id"]: one["last_seen"] for one in page()["data"]}
    assert seen["dora"] is None
    assert all(abs(seen[name] - time.time()) < 600 for name in ("ann", "bob"))
    first, second = page(limit=2), page(limit=2, after="bob")
    assert (first["has_more"], first["last_id"], second["has_more"]) == (True, "bob", False)
    assert first["data"] + second["data"] == page()["data"]

    proxy.client.put(f"{ANN}/profile", json={"text": "A guest."}).raise_for_status()
    for session in ("s1", "s2"):
        proxy.client.delete(f"/v1/memory/sessions/{session}").raise_for_status()
    assert listed() == {"ann": (0, 0), "bob": (0, 1), "dora": (1, 0)}, "her profile is left"
    assert proxy.client.delete(ANN).status_code == 204
    proxy.client.delete(f"/v1/memory/users/dora/facts/{kept['id']}").raise_for_status()
    assert listed() == {"bob": (0, 1)}
