"""Turns of a voice platform without a session are not remembered; header, log and Health say so."""

import hashlib
import hmac
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Address
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import settle, stored_entries

REQUEST = json.loads((Path(__file__).parents[1] / "golden" / "agora_doc_request.json").read_text())
WITHOUT = """
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines: {default: {upstreams: [main]}}
"""
CONFIG = (
    """
memory: {sessions: "${MEMORY_URL}", archive: {url: "${ARCHIVE_URL}"}, deadline: 5s}
webhooks: {agora: {secret: shared}}
"""
    + WITHOUT
)
NUMBERED = [{"role": "user", "content": "Hi", "turn_id": 1}]
PROMPTED = [{"role": "user", "content": "Hi", "metadata": {"source": "asr"}}]
FLAT = [{"role": "user", "content": "Hi", "source": "asr"}]


@pytest.fixture
def proxy(serve: Serve, address: Address) -> ProxyServer:
    url = address("sqlite")
    return serve(CONFIG, MEMORY_URL=url, ARCHIVE_URL=url)


def degraded(got: Any) -> str | None:
    assert got.status_code == 200
    name: str | None = got.headers.get("x-turnkeeper-degraded")
    return name


@pytest.mark.parametrize(
    "body", [REQUEST, *({"messages": each} for each in (NUMBERED, PROMPTED, FLAT)), {"turn_id": 3}]
)
def test_the_answer_says_that_there_is_none(proxy: ProxyServer, body: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], **body}
    assert degraded(proxy.chat(**body)) == "session"
    assert degraded(proxy.chat(**body, channel="room")) is None
    nested = {"model": "m", **body, "params": {"channel": "room"}}
    assert degraded(proxy.client.post("/v1/chat/completions", json=nested)) is None
    assert degraded(proxy.chat(**body, headers={"X-Session-Id": "room"})) is None
    assert degraded(proxy.chat(**body, headers={"X-Background": "true"})) is None
    explained = proxy.client.post("/v1/explain", json={"model": "m", **body}).json()
    assert explained["degraded"] == ["session"]


def test_a_client_that_is_no_voice_platform_needs_none(proxy: ProxyServer) -> None:
    assert degraded(proxy.chat([{"role": "user", "content": "Hi"}], user="ann")) is None


def test_without_memory_nothing_is_missed(serve: Serve) -> None:
    assert degraded(serve(WITHOUT).chat(NUMBERED)) is None


def test_the_log_and_the_page_say_what_to_set(proxy: ProxyServer, caplog: pytest.LogCaptureFixture) -> None:
    def warnings() -> list[str]:
        settle(proxy)
        proxy.run(flush())
        messages = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
        return [message for message in messages if "no session" in message]

    async def flush() -> None:
        proxy.app.reporter.flush()

    with caplog.at_level(logging.WARNING, "turnkeeper"):
        proxy.chat(NUMBERED, channel="room")
        assert warnings() == []
        assert "name no session" not in proxy.client.get("/health").text
        for _ in range(3):
            proxy.chat(NUMBERED)
            (warning,) = warnings()
    assert "set 'channel' in Agora's llm.params, or send X-Session-Id" in warning
    assert warning.endswith("tenant=default count=1")
    page = proxy.client.get("/health").text
    assert "name no session" in page
    assert "(3 of the turns kept)" in page


def test_a_history_without_users_is_of_the_user_whom_the_proxy_saw_there(proxy: ProxyServer) -> None:
    proxy.chat([{"role": "user", "content": "I am Ann."}], channel="room", user_id="ann")
    assert len(stored_entries(proxy, "room")) == 2
    lines = [
        {"role": "user", "content": "I am Ann."},
        {"role": "assistant", "content": "Hello there."},
        {"role": "user", "content": "My dog is called Rex."},
    ]
    payload = {"agent_id": "a", "channel": "room", "contents": lines}
    body = json.dumps({"noticeId": "n", "eventType": 103, "payload": payload}).encode()
    signature = hmac.new(b"shared", body, hashlib.sha256).hexdigest()
    got = proxy.client.post("/webhooks/agora", content=body, headers={"Agora-Signature-V2": signature})
    assert got.json() == {"status": "taken"}
    settle(proxy)
    search = {"user": "ann", "query": "Rex"}
    results = proxy.client.post("/v1/memory/search", json=search).json()["results"]
    assert results[0]["text"] == "My dog is called Rex."
