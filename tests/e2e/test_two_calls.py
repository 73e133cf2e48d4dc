"""What a caller tells in one call, the agent knows in the next: over HTTP alone, with a scripted model."""

import hashlib
import hmac
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.peers.fake_upstream import FakeUpstream, Received, Step, sse, stream_of
from tests.peers.scripted_model import calls, fact, is_extraction, lines, model
from tests.proxy_server import ProxyServer, Serve
from tests.waiting import awaited

SECRET = "s3cret"
CONFIG = """
memory:
  sessions: "${MEMORY_URL}"
  facts: {upstream: main, model: notes}
webhooks: {agora: {secret: "${AGORA_WEBHOOK_SECRET}"}}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default:
    upstreams: [main]
    request: [repair_history, restore_history, restore_interrupted: {show: both}, inject_facts]
    tools: [memory_store, memory_recall]
"""


@pytest.fixture
def proxy(serve: Serve, tmp_path: Path) -> ProxyServer:
    return serve(CONFIG, MEMORY_URL=f"sqlite:{tmp_path / 'm.db'}", AGORA_WEBHOOK_SECRET=SECRET)


def find(said: Any, _known: Any) -> Any:
    return [
        fact("Has a dog called Rex.", line["number"], importance=0.9)
        for line in said
        if "Rex" in line["text"]
    ]


def talk(request: Received) -> Iterable[Step]:
    newest = request.json["messages"][-1]
    if newest["role"] == "tool":
        found = json.loads(newest["content"])["found"]
        return sse(stream_of("You said: ", found[0]["text"]))
    if newest["content"].endswith("where we walk?"):
        return calls("memory_recall", query="dog walk")
    return sse(stream_of("Once upon a time there was a dog who walked around the world."))


def user(text: str, turn: int) -> dict[str, Any]:
    metadata = {"source": "asr", "user": "1001"}
    return {"role": "user", "content": text, "turn_id": turn, "timestamp": 1000 + turn, "metadata": metadata}


def call(proxy: ProxyServer, channel: str, *messages: Any) -> str:
    got = proxy.chat(list(messages), channel=channel, user_id="ann", stream=True)
    assert got.status_code == 200, got.text
    return got.text


def stopped(proxy: ProxyServer, channel: str, contents: list[dict[str, Any]]) -> None:
    """Event 103: the agent has stopped, with the whole history of the call."""
    now = int(time.time())
    payload = {
        "agent_id": "a1",
        "channel": channel,
        "start_ts": now - 60,
        "stop_ts": now,
        "contents": contents,
    }
    body = json.dumps(
        {"noticeId": "n1", "productId": 17, "eventType": 103, "notifyMs": now * 1000, "payload": payload}
    ).encode()
    signature = hmac.digest(SECRET.encode(), body, hashlib.sha256).hex()
    headers = {"content-type": "application/json", "agora-signature-v2": signature}
    assert proxy.client.post("/webhooks/agora", content=body, headers=headers).json() == {"status": "taken"}


def facts(proxy: ProxyServer, user: str = "ann") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = proxy.client.get(f"/v1/memory/users/{user}/facts").json()["data"]
    return found


def search(proxy: ProxyServer, query: str) -> str:
    return proxy.client.post("/v1/memory/search", json={"user": "ann", "query": query}).text


def test_the_second_call_knows_what_was_said_in_the_first(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    upstream.script = model(find, talk)
    first = user("My dog Rex likes walks by the river.", 1)
    call(proxy, "room-1", first)
    told = {"role": "assistant", "content": "Once upon", "turn_id": 1, "metadata": {"source": "llm"}}
    call(proxy, "room-1", first, told, user("Stop, that is enough.", 2))

    spoken = [{"speech_start_ms": int(time.time() * 1000) - 60_000 + i * 1000} for i in range(5)]
    contents = [
        {"role": "user", "content": "My dog Rex likes walks by the river.", **spoken[0]},
        {"role": "assistant", "content": "Once upon", **spoken[1]},
        {"role": "user", "content": "Stop, that is enough.", **spoken[2]},
        {"role": "assistant", "content": "Once upon a", **spoken[3]},
        {"role": "user", "content": "[think] Level: VIP, dog Rex"},
    ]
    awaited(lambda: len(proxy.client.get("/v1/memory/sessions/room-1").json().get("contents", ())) == 4)
    stopped(proxy, "room-1", contents)
    awaited(lambda: facts(proxy))

    (known,) = facts(proxy)
    assert known["text"] == "Has a dog called Rex."
    assert known["evidence"] == ["room-1/0/0"]
    assert facts(proxy, "1001") == []
    (asked,) = [r for r in upstream.requests if is_extraction(r)]
    assert [line["text"] for line in lines(asked, "said")] == [
        "My dog Rex likes walks by the river.",
        "Stop, that is enough.",
    ]
    assert asked.json["response_format"]["type"] == "json_schema"

    awaited(lambda: "dog Rex likes" in search(proxy, "walks by the river"))
    before = len(upstream.requests)
    answer = call(proxy, "room-2", user("Do you know where we walk?", 1))
    prompt, after = [r.json["messages"] for r in upstream.requests[before:]][:2]
    assert prompt[0]["role"] == "system"
    assert "Has a dog called Rex." in prompt[0]["content"]
    found = json.loads(after[-1]["content"])["found"]
    assert "My dog Rex likes walks by the river." in [one["text"] for one in found]
    assert "You said: " in answer
    assert "memory_recall" not in answer
    assert "VIP" not in str(facts(proxy))
