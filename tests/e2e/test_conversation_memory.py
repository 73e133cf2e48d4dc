"""What an agent did in a conversation it knows in the next turn, the next run, and no other conversation."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.peers.fake_upstream import FakeUpstream, answer, sse, stream_of
from tests.peers.scripted_model import calls, says
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import settle

CONFIG = """
memory:
  sessions: "${MEMORY_URL}"
  window: {max_messages: 50, keep_messages: 40}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", retries: 0}}
pipelines:
  default:
    upstreams: [main]
    identity: {default_session: dashboard}
    request: [repair_history, restore_history, inject_facts]
    tools: [memory_store, memory_recall, memory_forget]
"""
SYSTEM = {"role": "system", "content": "You are a browser."}
VISIT = {"id": "call_v", "type": "function", "function": {"name": "visit", "arguments": '{"url": "x.com"}'}}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'm.db'}"


@pytest.fixture
def proxy(serve: Serve, url: str) -> ProxyServer:
    return serve(CONFIG, MEMORY_URL=url)


def say(proxy: ProxyServer, *messages: Any, session: str | None = "s1", **more: Any) -> Any:
    told = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]
    headers = {
        "X-User-Id": "ann",
        **({"X-Session-Id": session} if session else {}),
        **more.pop("headers", {}),
    }
    got = proxy.chat([SYSTEM, *told], headers=headers, stream=True, **more)
    settle(proxy)
    return got


def stored_messages(proxy: ProxyServer, session: str = "s1") -> list[dict[str, Any]]:
    got = proxy.client.get(f"/v1/memory/sessions/{session}")
    contents: list[dict[str, Any]] = got.json()["contents"] if got.status_code == 200 else []
    return contents


def shown(upstream: FakeUpstream) -> list[Any]:
    return [m.get("content") for m in upstream.last.json["messages"]]


def visit(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    """The agent calls a tool of the client's, and tells what it found."""
    upstream.says(*calls("visit", url="x.com"))
    asked = {"role": "user", "content": "Visit x.com"}
    say(proxy, asked)
    upstream.says(*sse(stream_of("Done.")))
    call = {"role": "assistant", "content": None, "tool_calls": [{**VISIT, "id": "call_1"}]}
    say(proxy, asked, call, {"role": "tool", "tool_call_id": "call_1", "content": "Title: X"})


def test_calls_and_results_are_part_of_what_was_said_and_the_prompt_is_not(proxy, upstream) -> None:
    visit(proxy, upstream)
    assert [m["role"] for m in stored_messages(proxy)] == ["user", "assistant", "tool", "assistant"]
    say(proxy, "What page did you just visit?")
    sent = upstream.last.json["messages"]
    assert [m["role"] for m in sent] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert json.loads(sent[2]["tool_calls"][0]["function"]["arguments"]) == {"url": "x.com"}
    assert sent[3]["content"] == "Title: X"


def test_the_conversation_outlives_the_process(proxy, serve: Serve, upstream, url: str) -> None:
    visit(proxy, upstream)
    before = stored_messages(proxy)
    proxy.__exit__()
    again = serve(CONFIG, MEMORY_URL=url)
    assert stored_messages(again) == before
    say(again, "What page did you just visit?")
    assert "Title: X" in shown(upstream)


def test_sessions_know_nothing_of_each_other_and_a_file_carries_one(proxy, upstream) -> None:
    upstream.script = says("Noted.")
    say(proxy, "I am in the first.", session="one")
    say(proxy, "I am in none that is named.", session=None)
    say(proxy, "Where am I?", session="two")
    assert shown(upstream) == ["You are a browser.", "Where am I?"]
    assert stored_messages(proxy, "dashboard")[0]["content"] == "I am in none that is named."
    file = proxy.client.get("/v1/memory/sessions/one").json()
    assert proxy.client.put("/v1/memory/sessions/three", json=file).status_code in {200, 201}
    assert stored_messages(proxy, "three") == stored_messages(proxy, "one")


def test_an_engine_that_never_shows_an_answer_gets_them_all_back(proxy, upstream) -> None:
    spoken: list[str] = []
    for number in range(4):
        upstream.script = says(f"Answer {number}.")
        spoken.append(f"Question {number}?")
        say(proxy, *spoken)
    talk = [text for n in range(3) for text in (f"Question {n}?", f"Answer {n}.")]
    assert shown(upstream) == ["You are a browser.", *talk, "Question 3?"]
    assert [m["content"] for m in stored_messages(proxy)] == [*talk, "Question 3?", "Answer 3."]


def test_the_oldest_go_first_and_no_call_loses_its_result(proxy, upstream) -> None:
    visit(proxy, upstream)
    upstream.script = says("Noted.")
    for number in range(30):
        say(proxy, f"This is number {number}.")
        sent = upstream.last.json["messages"]
        called = {c["id"] for m in sent for c in m.get("tool_calls") or ()}
        assert called == {m["tool_call_id"] for m in sent if m["role"] == "tool"}
        assert len(sent) <= 52
    assert "Visit x.com" not in shown(upstream)
    assert "This is number 28." in shown(upstream)


def test_a_turn_that_fails_leaves_the_conversation_as_it_was(proxy, upstream) -> None:
    upstream.script = says("Noted.")
    say(proxy, "One.")
    before = stored_messages(proxy)
    upstream.says(*answer({"error": {"message": "Busy"}}, 503))
    assert say(proxy, "Two.").status_code >= 500
    assert stored_messages(proxy) == before


def test_work_in_the_background_has_no_memory_and_leaves_none(proxy, upstream) -> None:
    upstream.script = says("Noted.")
    say(proxy, "One.")
    proxy.client.post("/v1/memory/users/ann/facts", json={"text": "Likes jazz."})
    before = stored_messages(proxy)
    say(proxy, "Tick.", headers={"X-Background": "true"})
    assert shown(upstream) == ["You are a browser.", "Tick."]
    assert "tools" not in upstream.last.json
    assert stored_messages(proxy) == before


@pytest.mark.parametrize("category", ["core", "daily", "conversation"])
def test_what_is_stored_outlives_its_session_until_it_is_forgotten(proxy, upstream, category: str) -> None:
    scripts = [calls("memory_store", text="Prefers dark mode.", category=category), sse(stream_of("Noted."))]
    upstream.script = lambda _: scripts.pop(0)
    say(proxy, "I prefer dark mode.")
    (stored,) = proxy.client.get("/v1/memory/users/ann/facts").json()["data"]
    assert stored["category"] == category
    assert (stored["expires"] is None) == (category == "core")
    assert proxy.client.delete("/v1/memory/sessions/s1").status_code == 204
    assert stored_messages(proxy) == []

    upstream.script = says("Dark.")
    say(proxy, "Which mode?", session="s2")
    assert "Prefers dark mode." in shown(upstream)[1]
    forgetting = [calls("memory_forget", id=stored["id"]), sse(stream_of("Forgotten."))]
    upstream.script = lambda _: forgetting.pop(0)
    say(proxy, "Forget it.", session="s3")
    upstream.script = says("Which?")
    say(proxy, "Which mode?", session="s4")
    assert shown(upstream) == ["You are a browser.", "Which mode?"]
