"""Several users in one conversation: each one's words are recalled for that user only."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.peers.fake_upstream import DONE, ROLE, FakeUpstream, delta, sse, stream_of
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import settle

CONFIG = """
memory: {sessions: "${MEMORY_URL}", deadline: 5s}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default: {upstreams: [main], request: [restore_history, recall]}
  tools: {upstreams: [main], tools: [memory_recall]}
"""
BOBS = "I am Bob, I love jazz."
EVES = "I am Eve, I take insulin every morning."
ANSWERS = ["", "Jazz, I see.", "Insulin, I see.", "Berlin has jazz."]
AGAIN = "And jazz from Berlin?"
QUESTION = "When do I take insulin, and who loves jazz?"


def answering(request: Any) -> Any:
    """The answer to the turn that is asked for."""
    turn = sum(message["role"] == "user" for message in request.json["messages"])
    return sse(stream_of(ANSWERS[turn]))


@pytest.fixture
def proxy(serve: Serve, upstream: FakeUpstream, tmp_path: Path) -> ProxyServer:
    upstream.script = answering
    return serve(CONFIG, MEMORY_URL=f"sqlite:{tmp_path / 'memory.db'}")


def user(text: str, turn: int, name: str | None = None) -> dict[str, Any]:
    by = {"metadata": {"source": "asr", "user": name}} if name else {}
    return {"role": "user", "content": text, "turn_id": turn, **by}


def answer(turn: int) -> dict[str, Any]:
    told = {"turn_id": turn, "metadata": {"source": "llm"}}
    return {"role": "assistant", "content": ANSWERS[turn], **told}


WINDOW = [user(BOBS, 1, "bob"), answer(1), user(EVES, 2, "eve")]


def talked(proxy: ProxyServer, window: list[dict[str, Any]] = WINDOW) -> None:
    """Each that speaks is answered, in one room."""
    for end in range(1, len(window) + 1, 2):
        proxy.chat(window[:end], channel="room", stream=True)
    settle(proxy)


def found(proxy: ProxyServer, name: str, role: str = "user") -> set[str]:
    body = {"user": name, "query": QUESTION, "limit": 50}
    results = proxy.client.post("/v1/memory/search", json=body).json()["results"]
    return {one["text"] for one in results if one["role"] == role}


def exported(proxy: ProxyServer, name: str) -> Any:
    return proxy.client.get(f"/v1/memory/users/{name}/export").json()


def contents(proxy: ProxyServer, session: str = "room") -> list[str]:
    held = proxy.client.get(f"/v1/memory/sessions/{session}").json()
    return [message["content"] for message in held["contents"]]


def test_each_finds_his_own_words(proxy: ProxyServer) -> None:
    talked(proxy)
    assert (found(proxy, "bob"), found(proxy, "eve")) == ({BOBS}, {EVES})
    assert found(proxy, "bob", "assistant") == {ANSWERS[1]}
    assert found(proxy, "eve", "assistant") == {ANSWERS[2]}


def test_each_is_told_his_own_words_in_a_later_call(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    talked(proxy)
    for name, own, others in (("bob", BOBS, EVES), ("eve", EVES, BOBS)):
        proxy.chat([user(QUESTION, 1, name)], channel=f"later-{name}", stream=True)
        shown = upstream.last.json["messages"][-1]["content"]
        assert f"the caller said: {own}" in shown
        assert others not in shown


@pytest.mark.parametrize(("name", "own", "others"), [("bob", BOBS, EVES), ("eve", EVES, BOBS)])
def test_a_model_looks_up_the_callers_own_words(
    proxy: ProxyServer, upstream: FakeUpstream, name: str, own: str, others: str
) -> None:
    talked(proxy)
    function = {"name": "memory_recall", "arguments": json.dumps({"query": QUESTION})}
    call = {"index": 0, "id": "call_1", "type": "function", "function": function}
    rounds = iter([sse(ROLE + delta(tool_calls=[call]) + delta(finish="tool_calls") + DONE)])
    upstream.script = lambda _: next(rounds, sse(stream_of("So.")))
    body = {"model": "m", "channel": "later", "stream": True, "messages": [user(QUESTION, 1, name)]}
    proxy.client.post("/pipelines/tools/v1/chat/completions", json=body).raise_for_status()
    told = json.loads(upstream.last.json["messages"][-1]["content"])["found"]
    words = {one["text"] for one in told if one["said_by"] == "user"}
    assert own in words
    assert others not in words


def test_whoever_nobody_names_is_the_sessions_person(proxy: ProxyServer) -> None:
    talked(proxy, [user(BOBS, 1, "bob"), answer(1), user(EVES, 2)])
    assert found(proxy, "bob") == {BOBS, EVES}


def test_what_a_forgotten_guest_was_answered_is_told_to_nobody(proxy: ProxyServer) -> None:
    talked(proxy)
    assert proxy.client.delete("/v1/memory/users/eve").status_code == 204
    assert contents(proxy) == [BOBS, ANSWERS[1], ANSWERS[2]]
    later = [*WINDOW, answer(2), user(AGAIN, 3, "bob")]
    proxy.chat(later, channel="room", stream=True)
    settle(proxy)
    assert contents(proxy) == [BOBS, *ANSWERS[1:3], AGAIN, ANSWERS[3]]
    assert found(proxy, "eve") == found(proxy, "eve", "assistant") == set()
    assert found(proxy, "bob") == {BOBS, AGAIN}
    assert found(proxy, "bob", "assistant") == {ANSWERS[1], ANSWERS[3]}


def test_with_the_sessions_person_goes_what_its_guests_said_there(proxy: ProxyServer) -> None:
    talked(proxy)
    assert proxy.client.delete("/v1/memory/users/bob").status_code == 204
    assert found(proxy, "bob") == found(proxy, "eve") == set()
    assert exported(proxy, "eve")["turns"] == []


def told_before(proxy: ProxyServer, name: str) -> list[str]:
    """Returns the lines of a user's last conversation that an agent gets."""
    given = proxy.client.get(f"/v1/memory/users/{name}/system_messages").json()
    return [line for one in given for line in one["content"].splitlines()[2:-1]]


@pytest.mark.parametrize("held", [True, False])
def test_who_spoke_beside_a_person_is_named_where_the_last_conversation_is_told(
    proxy: ProxyServer, held: bool
) -> None:
    talked(proxy)
    if not held:
        proxy.client.delete("/v1/memory/sessions/room").raise_for_status()
    ends = [f"- assistant: {ANSWERS[1]}", f"- user eve: {EVES}", f"- assistant: {ANSWERS[2]}"]
    assert told_before(proxy, "bob") == [f"- user: {BOBS}", *ends]
    assert told_before(proxy, "eve") == [f"- user: {EVES}"]


@pytest.mark.parametrize("held", [True, False])
def test_a_number_that_stands_for_a_person_is_no_other_where_the_last_conversation_is_told(
    proxy: ProxyServer, held: bool
) -> None:
    proxy.chat([user(BOBS, 1, "1001")], channel="room", user_id="bob", stream=True)
    settle(proxy)
    if not held:
        proxy.client.delete("/v1/memory/sessions/room").raise_for_status()
    assert told_before(proxy, "bob") == [f"- user: {BOBS}", f"- assistant: {ANSWERS[1]}"]


# --- whose session it is


def test_a_session_is_of_him_who_spoke_first(proxy: ProxyServer) -> None:
    """The proxy joins a conversation that has begun, and nothing but its messages names anybody."""
    proxy.chat(WINDOW, channel="room", stream=True)
    settle(proxy)
    assert proxy.client.get("/v1/memory/sessions/room").json()["turnkeeper"]["user"] == "bob"
    assert (found(proxy, "bob"), found(proxy, "eve")) == ({BOBS}, {EVES})
    assert BOBS not in json.dumps(exported(proxy, "eve"))
    assert BOBS not in proxy.client.get("/v1/memory/users/eve/system_messages").text
    assert proxy.client.delete("/v1/memory/users/eve").status_code == 204
    assert contents(proxy)[:2] == [BOBS, ANSWERS[1]]
    assert EVES not in contents(proxy)
    assert found(proxy, "bob") == {BOBS}


@pytest.mark.parametrize("where", [{"headers": {"X-User-Id": "eve"}}, {"user_id": "eve"}])
def test_whom_a_request_names_is_its_sessions_person(proxy: ProxyServer, where: dict[str, Any]) -> None:
    proxy.chat(WINDOW, channel="room", stream=True, **where)
    settle(proxy)
    assert proxy.client.get("/v1/memory/sessions/room").json()["turnkeeper"]["user"] == "eve"
    assert (found(proxy, "bob"), found(proxy, "eve")) == ({BOBS}, {EVES})


def test_whom_a_later_request_names_has_his_own_words(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    """The request's user counts for words that name nobody: those that it asks, and no earlier ones."""
    window = [user(BOBS, 1), answer(1), user(EVES, 2), answer(2), user(AGAIN, 3)]
    for name, end in (("bob", 1), ("eve", 3), ("bob", 5)):
        proxy.chat(window[:end], channel="room", user_id=name, stream=True)
    settle(proxy)
    assert (found(proxy, "bob"), found(proxy, "eve")) == ({BOBS, AGAIN}, {EVES})
    assert found(proxy, "eve", "assistant") == {ANSWERS[2]}
    proxy.client.delete("/v1/memory/users/eve").raise_for_status()
    left = [BOBS, *ANSWERS[1:3], AGAIN, ANSWERS[3]]
    assert contents(proxy) == left
    upstream.script = lambda _: sse(stream_of("Bye."))
    window += [answer(3), user("Thank you.", 4)]
    proxy.chat(window, channel="room", user_id="bob", stream=True)
    settle(proxy)
    assert contents(proxy) == [*left, "Thank you.", "Bye."]
