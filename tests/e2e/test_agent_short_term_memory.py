"""An agent's short-term memory: read in a call, sent to the model, and known in the next call."""

import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.peers.fake_upstream import FakeUpstream, sse, stream_of
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import stored_entries

ROOT = Path(__file__).parents[2]
AGORA = ROOT / "config" / "agora.yaml"
REQUEST = json.loads((ROOT / "tests/golden/agora_doc_request.json").read_text())
SECRET = "s3cret"


@pytest.fixture
def proxy(serve: Serve, tmp_path: Path) -> ProxyServer:
    return serve(AGORA, MEMORY_URL=f"sqlite:{tmp_path / 'm.db'}", AGORA_WEBHOOK_SECRET=SECRET)


def stopped(proxy: ProxyServer) -> None:
    now = int(time.time())
    spoken = [m for m in REQUEST["messages"] if m["metadata"]["source"] in {"asr", "llm"}]
    contents = [
        {"role": m["role"], "content": m["content"], "speech_start_ms": (now - 50 + i) * 1000}
        for i, m in enumerate(spoken)
    ]
    payload = {
        "agent_id": "a",
        "channel": "room-1",
        "start_ts": now - 60,
        "stop_ts": now,
        "contents": contents,
    }
    body = json.dumps(
        {"noticeId": "n", "productId": 17, "eventType": 103, "notifyMs": now * 1000, "payload": payload}
    ).encode()
    signature = hmac.digest(SECRET.encode(), body, hashlib.sha256).hex()
    headers = {"content-type": "application/json", "agora-signature-v2": signature}
    assert proxy.client.post("/webhooks/agora", content=body, headers=headers).json() == {"status": "taken"}


def test_what_was_said_is_kept_told_and_carried_into_the_next_agent(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    upstream.says(*sse(stream_of("Of course I am.")))
    body: dict[str, Any] = {**REQUEST, "channel": "room-1"}
    messages = body.pop("messages")
    assert proxy.chat(messages, **body, stream=True).status_code == 200

    # Custom: all fields came in, and the model gets the standard ones alone, with what was not heard marked.
    sent = upstream.last.json
    assert {name for message in sent["messages"] for name in message} == {"role", "content"}
    cut = next(m["content"] for m in sent["messages"] if m["content"].startswith("Why did the scarecrow"))
    assert "outstanding in his field" in cut

    # Short-term memory in the documented shape, at any time.
    stored_entries(proxy, "room-1")
    contents = proxy.client.get("/v1/memory/sessions/room-1").json()["contents"]
    assert contents[: len(messages)] == messages
    assert contents[-1]["content"] == "Of course I am."
    assert "system" not in {message["role"] for message in contents}

    # The agent stops, and the next one is given what was said, ready for llm.system_messages.
    stopped(proxy)
    given = proxy.client.get("/v1/memory/users/user123/system_messages").json()
    assert [message["role"] for message in given] == ["system"]
    assert "Tell me a story instead." in given[0]["content"]
    proxy.chat(
        [*given, {"role": "user", "content": "Go on."}], channel="room-2", user_id="user123", stream=True
    )
    # The notes on the call that has ended may be asked for at any time: no stream.
    asked = [request.json for request in upstream.requests if request.json.get("stream")]
    assert asked[-1]["messages"][0] == given[0]
