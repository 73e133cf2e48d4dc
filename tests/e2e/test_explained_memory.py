"""``POST /v1/explain`` tells what this session and this person would really get, and leaves all as it was."""

import hashlib
import hmac
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.peers.fake_upstream import FakeUpstream
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import settle
from tests.waiting import awaited

CONFIG = """
memory: {sessions: "${MEMORY_URL}", deadline: "${DEADLINE:-2s}"}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL:-practice:}"}}
pipelines:
  default:
    upstreams: [main]
    request:
      - repair_history
      - restore_history
      - inject_summaries
      - restore_interrupted: {show: both}
      - inject_facts
      - inject_episodes: {agent: bot}
      - recall: {limit: 3}
      - trim_history: {max_tokens: 500}
    tools: [memory_store, memory_recall, memory_forget]
"""
SECRET = "a-secret-of-32-characters-at-least"
PROVEN = CONFIG.replace(
    "    upstreams: [main]\n", f"    upstreams: [main]\n    identity: {{user_hmac: {SECRET}}}\n"
)
ODD = '''
from filters.base import Example, RequestFilter


class Odd(RequestFilter):
    """Fails."""

    examples = (Example("Nothing", {}, before=[], after=[]),)

    def apply(self, messages, context):
        return messages[7:8] or messages[7]
'''
SESSIONS = "/v1/memory/sessions"


def user(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def who(session: str = "s1", person: str = "ann") -> dict[str, str]:
    return {"X-Session-Id": session, "X-User-Id": person}


def explained(proxy: ProxyServer, *messages: Any, headers: Any = None, **fields: Any) -> Any:
    got = proxy.chat([*messages], path="/v1/explain", headers=headers or who(), **fields)
    assert got.status_code == 200, got.text
    return got


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'memory.db'}"


@pytest.fixture
def proxy(serve: Serve, url: str) -> ProxyServer:
    """A server with a session, a fact, an episode, and words of another session."""
    proxy = serve(CONFIG, MEMORY_URL=url)
    held = [user("My name is Ann.", turn_id=1), {"role": "assistant", "content": "Hi Ann.", "turn_id": 1}]
    proxy.client.put(f"{SESSIONS}/s1", json={"contents": held})
    proxy.client.post("/v1/memory/users/ann/facts", json={"text": "Likes figs."})
    told = {"interaction_type": "call", "content": "Sold a scarecrow."}
    proxy.client.post("/v1/memory/agents/bot/episodes", json=told)
    proxy.chat([user("My scarecrow is called Ferdinand.")], headers=who("s0"))
    settle(proxy)
    return proxy


@pytest.mark.parametrize(
    "asked",
    [
        {"messages": [user("What is my scarecrow called?", turn_id=2)]},
        {
            "messages": [user("Next?", turn_id=2)],
            "tools": [{"type": "function", "function": {"name": "look"}}],
        },
        {
            "messages": [user("Next?", turn_id=2)],
            "tools": [{"type": "function", "function": {"name": "memory_store", "parameters": {}}}],
        },
        {"messages": [user("Next?", turn_id=2)], "n": 2},
        {"messages": [user("My name is Ann."), user("And mine?", metadata={"user": "bob"})]},
        {
            "messages": [
                user("word " * 300, turn_id=2),
                user("word " * 300, turn_id=3),
                user("Now?", turn_id=4),
            ]
        },
    ],
    ids=["recall", "client's tools", "a tool of ours", "several choices", "several speakers", "too long"],
)
@pytest.mark.parametrize("headers", [who(), who("s2"), who("s1", "bob"), {"X-Session-Id": "s1"}, {}])
def test_the_body_explained_is_the_body_sent(
    proxy: ProxyServer, upstream: FakeUpstream, asked: dict[str, Any], headers: dict[str, str]
) -> None:
    asked = {"model": "fake", **asked}
    told = proxy.client.post("/v1/explain", json=asked, headers=headers)
    real = proxy.client.post("/v1/chat/completions", json=asked, headers=headers)
    assert (told.status_code, real.status_code) == (200, 200)
    assert told.json()["sent"] == upstream.last.json
    named = [got.headers.get("x-turnkeeper-degraded") for got in (told, real)]
    assert named[0] == named[1]
    assert told.json()["degraded"] == (named[0] or "").split(", ") * bool(named[0])


def test_each_step_tells_what_memory_gave(proxy: ProxyServer) -> None:
    told = explained(proxy, user("What is my scarecrow called?", turn_id=2)).json()
    changed = {step["filter"] for step in told["steps"] if step["changed"]}
    assert {"restore_history", "inject_facts", "inject_episodes", "recall"} <= changed
    assert (told["memory"], told["degraded"]) == ("read", [])
    assert told["tools"] == ["memory_store", "memory_recall", "memory_forget"]
    for words in ("My name is Ann.", "Likes figs.", "Sold a scarecrow.", "Ferdinand"):
        assert words in json.dumps(told["sent"])


def test_what_was_not_heard_is_marked_as_in_the_turn(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    asked = [
        user("Tell me.", turn_id=1),
        {"role": "assistant", "content": "Hello", "turn_id": 1},
        user("Go on.", turn_id=2),
    ]
    proxy.chat(asked[:1], headers=who("cut"))
    awaited(lambda: proxy.client.get(f"{SESSIONS}/cut").status_code == 200)
    told = explained(proxy, *asked, headers=who("cut")).json()
    proxy.chat(asked, headers=who("cut"))
    assert told["sent"] == upstream.last.json
    assert told["messages"][1] == asked[1] and told["heard"][1] != asked[1]


def test_nothing_is_left_behind(proxy: ProxyServer, upstream: FakeUpstream, tmp_path: Path) -> None:
    def state() -> Any:
        paths = (f"{SESSIONS}/s1", SESSIONS, "/v1/memory/users/ann/facts", "/v1/memory/users/ann/export")
        return [proxy.client.get(path).json() for path in paths]

    with closing(sqlite3.connect(tmp_path / "memory.db")) as file:
        before, asked = (
            (state(), file.execute("SELECT * FROM turnkeeper_sessions").fetchall()),
            len(upstream.requests),
        )
        for _ in range(2):
            explained(proxy, user("I moved to Rome.", turn_id=2))
            explained(proxy, user("Who am I?"), headers=who("new"))
        after = state(), file.execute("SELECT * FROM turnkeeper_sessions").fetchall()
    assert after == before
    assert len(upstream.requests) == asked


def test_what_is_explained_takes_no_turns_place(
    serve: Serve, upstream: FakeUpstream, url: str, proxy: ProxyServer
) -> None:
    real = proxy.chat([user("One?", turn_id=7)], headers=who(), stream=True)
    explained(proxy, user("One? Two?", turn_id=7))
    assert real.status_code == 200 and "[DONE]" in real.text
    metrics = proxy.client.get("/metrics").text
    assert 'outcome="superseded"' not in metrics


def test_background_work_has_no_memory(proxy: ProxyServer) -> None:
    told = explained(proxy, user("Next?"), headers={**who(), "X-Background": "true"}).json()
    assert (told["memory"], told["tools"]) == ("none", [])
    assert [message["content"] for message in told["sent"]["messages"]] == ["Next?"]


def test_a_filter_that_is_passed_over_is_told_so(
    serve: Serve, tmp_path: Path, upstream: FakeUpstream
) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    pipeline = "{upstreams: [main], failing: skip, request: [odd, repair_history]}"
    proxy = serve(f"filters: [odd.py]\n{CONFIG.partition('pipelines:')[0]}pipelines: {{default: {pipeline}}}")
    told = explained(proxy, user("Next?")).json()
    proxy.chat([user("Next?")], headers=who())
    assert told["sent"] == upstream.last.json
    assert [(step["filter"], step["failed"]) for step in told["steps"]] == [
        ("odd", True),
        ("repair_history", False),
    ]
    assert told["degraded"] == ["odd"]


def test_a_person_has_to_be_proven_as_in_a_turn(serve: Serve, url: str) -> None:
    proxy = serve(PROVEN, MEMORY_URL=url)
    proof = hmac.new(SECRET.encode(), b"ann", hashlib.sha256).hexdigest()
    for shown, status in (({}, 401), ({"X-User-Hmac": "0" * 64}, 401), ({"X-User-Hmac": proof}, 200)):
        for path in ("/v1/explain", "/v1/chat/completions"):
            got = proxy.chat([user("Next?")], path=path, headers={**who(), **shown})
            assert got.status_code == status, (path, got.text)


@pytest.mark.faults
def test_a_dead_memory_is_said_as_in_a_turn(serve: Serve, upstream: FakeUpstream, tmp_path: Path) -> None:
    path = tmp_path / "locked.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        proxy = serve(CONFIG, MEMORY_URL=f"sqlite:{path}", DEADLINE="50ms")
        told = explained(proxy, user("Who am I?"))
        real = proxy.chat([user("Who am I?")], headers=who())
        assert told.json()["sent"] == upstream.last.json
    assert "memory" in told.json()["degraded"]
    assert set(told.json()["degraded"]) == set(real.headers["x-turnkeeper-degraded"].split(", "))
    assert told.headers["x-turnkeeper-degraded"] == ", ".join(told.json()["degraded"])
    assert told.json()["memory"] == "read"
