"""Ids that were cut inside an emoji: half a character names nobody, and no two of them are one session."""

import hashlib
import hmac
import json
from typing import Any

import pytest

from proxy.observe.observation import TurnReport
from tests.e2e.conftest import Address
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import settle, stored_entries

CONFIG = """
memory: {sessions: "${MEMORY_URL}", deadline: 5s}
webhooks: {agora: {secret: shared}}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines: {default: {upstreams: [main], request: [restore_history]}}
"""
WHOLE = "room-\N{PARTY POPPER}"
HALVES = ["room-\ud83d", "room-\ud800", "room-\udf89"]
SAID = {"role": "user", "content": "Hi"}


@pytest.fixture
def proxy(serve: Serve, address: Address) -> ProxyServer:
    return serve(CONFIG, MEMORY_URL=address("sqlite"))


def escaped(text: str) -> str:
    """In percent-encoding, half a character too."""
    return "".join(f"%{byte:02X}" for byte in text.encode("utf-8", "surrogatepass"))


def post(proxy: ProxyServer, query: str = "", headers: Any = None, **fields: Any) -> Any:
    body = json.dumps({"model": "m", "messages": [SAID], **fields})  # escapes what is no ASCII
    got = proxy.client.post(f"/v1/chat/completions{query}", content=body, headers=headers)
    assert got.status_code == 200
    return got


def newest(proxy: ProxyServer) -> TurnReport:
    """The report of the newest turn."""
    settle(proxy)
    proxy.app.reporter.flush()
    return next(iter(proxy.app.traces.newest("default"))).report


def ignored(proxy: ProxyServer) -> list[str]:
    return list(newest(proxy).ignored)


def of_session(place: str, id_: str) -> dict[str, Any]:
    literal = repr({"instanceId": id_})  # as Alibaba writes it
    fields: dict[str, dict[str, Any]] = {
        "header:X-Session-Id": {"headers": {b"X-Session-Id": id_.encode("utf-8", "surrogatepass")}},
        "query:session_id": {"query": f"?session_id={escaped(id_)}"},
        "body:session_id": {"session_id": id_},
        "body:params.channel": {"params": {"channel": id_}},
        "body:channel": {"channel": id_},
        "body:custom.session_id": {"custom": json.dumps({"session_id": id_})},
        "body:extendData.instanceId": {"extendData": literal},
    }
    return fields[place]


SESSION_PLACES = [
    "header:X-Session-Id",
    "query:session_id",
    "body:session_id",
    "body:params.channel",
    "body:channel",
    "body:custom.session_id",
    "body:extendData.instanceId",
]


@pytest.mark.parametrize("place", SESSION_PLACES)
def test_a_session_that_was_cut_is_ignored_by_name(proxy: ProxyServer, place: str) -> None:
    for half in HALVES:
        got = post(proxy, **of_session(place, half))
        assert "x-turnkeeper-session" not in got.headers
        assert ignored(proxy) == [place]
    assert proxy.client.get("/v1/memory/sessions").json()["data"] == []
    got = post(proxy, **of_session(place, WHOLE))
    assert got.headers["x-turnkeeper-session"] == f"room-{escaped(WHOLE[-1])}"
    assert ignored(proxy) == []


def test_it_counts_as_an_ignored_field(proxy: ProxyServer) -> None:
    post(proxy, channel=HALVES[0])
    settle(proxy)
    assert "turnkeeper_ignored_fields_total 1.0" in proxy.client.get("/metrics").text


@pytest.mark.parametrize("half", HALVES)
def test_a_user_who_was_cut_is_ignored_by_name(proxy: ProxyServer, half: str) -> None:
    first = {**SAID, "metadata": {"user": half}}
    post(proxy, session_id="s1", messages=[first, {"role": "assistant", "content": "Yes?"}, first])
    assert ignored(proxy) == [
        "messages[0].metadata.user",
        "messages[2].metadata.user",
        "message:metadata.user",
    ]
    assert newest(proxy).user is None
    post(proxy, session_id="s2", user_id=half, user="ann")
    assert ignored(proxy) == ["body:user_id"]
    assert newest(proxy).user == "ann"
    assert [entry.user for entry in stored_entries(proxy, "s1")] == [None] * 4


@pytest.mark.parametrize("half", HALVES)
def test_paths_and_bodies_of_the_memory_api_refuse_it(proxy: ProxyServer, half: str) -> None:
    for path in ("sessions", "users"):
        suffix = "/facts" if path == "users" else ""
        got = proxy.client.get(f"/v1/memory/{path}/{escaped(half)}{suffix}")
        assert (got.status_code, got.json()["error"]["param"]) == (400, "id")
    for key in ("id", "user"):
        body = json.dumps({"contents": [], key: half})
        got = proxy.client.post("/v1/memory/sessions", content=body)
        assert (got.status_code, got.json()["error"]["param"]) == (400, key)
    assert proxy.client.get("/v1/memory/sessions").json()["data"] == []


def test_what_is_imported_names_nobody_by_half_a_character(proxy: ProxyServer) -> None:
    message = {**SAID, "metadata": {"user": HALVES[0]}}
    got = proxy.client.post("/v1/memory/sessions", content=json.dumps({"id": "s1", "contents": [message]}))
    assert got.status_code == 201
    assert [entry.user for entry in stored_entries(proxy, "s1")] == [None]


def test_a_webhook_event_of_half_a_channel_is_ignored(proxy: ProxyServer) -> None:
    for half in HALVES:
        payload = {"agent_id": "a", "channel": half, "contents": [SAID]}
        body = json.dumps({"noticeId": half, "eventType": 103, "payload": payload}).encode()
        signature = hmac.new(b"shared", body, hashlib.sha256).hexdigest()
        got = proxy.client.post("/webhooks/agora", content=body, headers={"Agora-Signature-V2": signature})
        assert got.json() == {"status": "ignored"}
    assert proxy.client.get("/v1/memory/sessions").json()["data"] == []


def test_half_a_character_in_words_is_a_replacement_character(proxy: ProxyServer) -> None:
    post(proxy, session_id="s1", messages=[{"role": "user", "content": "Hi \ud83d"}])
    assert stored_entries(proxy, "s1")[0].content == "Hi \N{REPLACEMENT CHARACTER}"
