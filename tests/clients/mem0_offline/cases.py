"""Facts in the real Mem0, with an embedder on loopback: run by itself, beside Mem0's own dependencies."""

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.peers.fake_upstream import FakeUpstream, Received, answer
from tests.peers.scripted_model import fact, is_extraction, lines, model, says
from tests.proxy_server import ProxyServer

CONFIG = """
memory:
  sessions: "${MEMORY_URL}"
  deadline: 5s
  facts:
    upstream: main
    model: notes
    pause: 200ms
    store: mem0
    mem0:
      vector_store:
        provider: qdrant
        config: {path: "${FOLDER}/qdrant", on_disk: true, embedding_model_dims: 8, collection_name: facts}
      embedder: {provider: openai, config: {api_key: x, openai_base_url: "${UPSTREAM}", embedding_dims: 8}}
      llm: {provider: openai, config: {api_key: x, openai_base_url: "${UPSTREAM}"}}
upstreams: {main: {base_url: "${UPSTREAM}"}}
pipelines: {default: {upstreams: [main], request: [restore_history, inject_facts]}}
"""
ANN = "/v1/memory/users/ann/facts"


def find(said: Any, fact_texts: Any) -> Any:
    old = next((line["id"] for line in fact_texts if "Paris" in line["text"]), None)
    return [
        fact(line["text"], line["number"], replaces=old) for line in said if line["text"].startswith("I ")
    ]


def script(request: Received) -> Any:
    if not request.path.endswith("/embeddings"):
        return model(find, says("Noted."))(request)
    asked = request.json["input"]
    texts = asked if isinstance(asked, list) else [asked]
    data = [
        {"object": "embedding", "index": i, "embedding": [byte / 256 for byte in digest(text)]}
        for i, text in enumerate(texts)
    ]
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    return answer({"object": "list", "model": "e", "data": data, "usage": usage})


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:8]


def fact_texts(proxy: ProxyServer, user: str = "ann") -> list[str]:
    return [one["text"] for one in proxy.client.get(f"/v1/memory/users/{user}/facts").json()["data"]]


def until(holds: Callable[[], Any], within: float = 20) -> None:
    end = time.monotonic() + within
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    assert holds()


def say(proxy: ProxyServer, text: str, session: str) -> None:
    headers = {"X-Session-Id": session, "X-User-Id": "ann"}
    got = proxy.chat([{"role": "user", "content": text}], headers=headers)
    assert got.status_code == 200, got.text
    assert "x-turnkeeper-degraded" not in got.headers


def chats(upstream: FakeUpstream) -> list[Received]:
    return [r for r in list(upstream.requests) if r.path.endswith("/chat/completions")]


def extractions(upstream: FakeUpstream) -> list[Received]:
    return [r for r in chats(upstream) if is_extraction(r)]


def prompt(upstream: FakeUpstream) -> list[str]:
    newest = [r for r in chats(upstream) if not is_extraction(r)][-1]
    return [message["content"] for message in newest.json["messages"]]


def learnt_told_replaced_and_forgotten(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    say(proxy, "I live in Paris.", "s1")
    until(lambda: fact_texts(proxy) == ["I live in Paris."])
    say(proxy, "Hello?", "s2")
    assert "I live in Paris." in prompt(upstream)[0]

    say(proxy, "I live in Berlin.", "s3")
    until(lambda: fact_texts(proxy) == ["I live in Berlin."])
    exported = proxy.client.get("/v1/memory/users/ann/export").json()["facts"]
    assert [one["text"] for one in exported] == ["I live in Paris.", "I live in Berlin."]
    (asked,) = [r for r in extractions(upstream) if "Berlin" in lines(r, "said")[0]["text"]]
    assert [line["text"] for line in lines(asked, "known")] == ["I live in Paris."]
    assert fact_texts(proxy, "bob") == []


def added_corrected_and_removed(proxy: ProxyServer) -> None:
    made = proxy.client.post(ANN, json={"text": "Likes jazz.", "category": "daily"}).json()
    assert (made["category"], made["expires"] is None) == ("daily", False)
    again = proxy.client.post(ANN, json={"text": "likes JAZZ"}).json()
    assert again["id"] == made["id"]
    right = proxy.client.patch(f"{ANN}/{made['id']}", json={"text": "Likes soul."}).json()
    assert right["id"] == made["id"]
    assert fact_texts(proxy) == ["I live in Berlin.", "Likes soul."]
    assert proxy.client.delete(f"{ANN}/{made['id']}").status_code == 204
    assert proxy.client.delete(f"{ANN}/{made['id']}").status_code == 404


def main(folder: str) -> None:
    os.environ["MEM0_DIR"] = folder
    config = Path(folder) / "config.yaml"
    config.write_text(CONFIG)
    with FakeUpstream() as upstream:
        upstream.script = script
        environ = {"MEMORY_URL": f"sqlite:{folder}/m.db", "FOLDER": folder, "UPSTREAM": upstream.url}
        with ProxyServer(config, environ) as proxy:
            learnt_told_replaced_and_forgotten(proxy, upstream)
            added_corrected_and_removed(proxy)
        with ProxyServer(config, environ) as proxy:
            assert fact_texts(proxy) == ["I live in Berlin."]
            assert proxy.client.delete("/v1/memory/users/ann").status_code < 300
            assert fact_texts(proxy) == []
            say(proxy, "Hello again?", "s4")
            assert prompt(upstream) == ["Hello again?"]
        assert {request.path for request in upstream.requests} == {"/v1/embeddings", "/v1/chat/completions"}
    sys.stdout.write(json.dumps({"cases": "hold"}))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
