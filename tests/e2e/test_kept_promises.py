"""What a model stores or forgets counts once something of its answer reaches the caller, and not before."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from proxy.answer.transcript import transcript
from tests.peers.fake_upstream import (
    DONE,
    END,
    HEAD,
    ROLE,
    FakeUpstream,
    Step,
    answer,
    chunk,
    completion,
    delta,
    sse,
    stream_of,
)
from tests.proxy_server import ProxyServer, Serve
from tests.waiting import until

CONFIG = """
memory: {sessions: "${MEMORY_URL}"}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default: {upstreams: [main], tools: [memory_store, memory_recall, memory_forget], request: [inject_facts]}
"""
WHO = {"X-Session-Id": "s1", "X-User-Id": "ann"}
FACTS = "/v1/memory/users/ann/facts"
BAD = answer({"error": {"message": "bad", "type": "t", "param": None, "code": None}}, 400)
Script = Callable[[Any], Any]


@pytest.fixture
def proxy(serve: Serve, tmp_path: Path) -> ProxyServer:
    return serve(CONFIG, MEMORY_URL=f"sqlite:{tmp_path / 'memory.db'}")


def calling(name: str, **arguments: Any) -> Script:
    """A round in which one tool of ours is called, streamed or whole as it is asked for."""

    def script(request: Any) -> list[Step]:
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"index": 0, "id": "call_1", "type": "function", "function": function}
        if request.json.get("stream"):
            return sse(ROLE + delta(tool_calls=[call]) + delta(finish="tool_calls") + DONE)
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        return answer({**completion(), "choices": [choice]})

    return script


def saying(text: str) -> Script:
    return lambda request: sse(stream_of(text)) if request.json.get("stream") else answer(completion(text))


def says(upstream: FakeUpstream, *rounds: Script | list[Step]) -> None:
    """From now on each request gets the next of these."""
    left = iter(rounds)

    def script(request: Any) -> Any:
        each = next(left)
        return each(request) if callable(each) else each

    upstream.script = script


def ask(proxy: ProxyServer, text: str = "I like kiwis.", **more: Any) -> httpx2.Response:
    return proxy.chat([{"role": "user", "content": text}], headers=WHO, **more)


def fact_texts(proxy: ProxyServer) -> list[str]:
    return [fact["text"] for fact in proxy.client.get(FACTS).json()["data"]]


def tool_result(upstream: FakeUpstream, number: int = -1) -> Any:
    """Returns a tool's result, the last message of a request to the model."""
    return json.loads(upstream.requests[number].json["messages"][-1]["content"])


@pytest.mark.parametrize("stream", [True, False])
def test_a_turn_that_failed_leaves_no_fact_and_forgets_none(
    proxy: ProxyServer, upstream: FakeUpstream, stream: bool
) -> None:
    held = proxy.client.post(FACTS, json={"text": "Likes figs."}).json()["id"]
    store, forget = calling("memory_store", text="Likes kiwis."), calling("memory_forget", id=held)
    says(upstream, store, forget, BAD)
    assert ask(proxy, stream=stream).status_code == 400
    assert (tool_result(upstream, 1)["stored"], tool_result(upstream, 2)["forgotten"]) == (True, True)
    assert fact_texts(proxy) == ["Likes figs."]
    says(upstream, store, forget, saying("Noted."))
    assert ask(proxy, stream=stream).status_code == 200
    assert fact_texts(proxy) == ["Likes kiwis."]


@pytest.mark.parametrize("stream", [True, False])
def test_what_was_stored_is_known_when_the_answer_ends(
    proxy: ProxyServer, upstream: FakeUpstream, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.tools.memory_tools._SETTLE_TIMEOUT", 30)  # however slow the machine is
    for number in range(5):
        says(upstream, calling("memory_store", text=f"Has {number} dogs."), saying("Noted."))
        ask(proxy, stream=stream)
        facts = proxy.client.get(FACTS).json()["data"]
        assert [fact["text"] for fact in facts] == [f"Has {each} dogs." for each in range(number + 1)]
        assert facts[-1]["id"] == tool_result(upstream)["id"]
        says(upstream, saying("Yes."))
        ask(proxy, "And now?")
        assert f"Has {number} dogs." in str(upstream.last.json["messages"])


def test_what_was_stored_is_known_once_the_caller_hears_the_answer(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    begun = [HEAD, chunk(ROLE), chunk(delta(content="Noted.")), 30.0]
    says(upstream, calling("memory_store", text="Likes kiwis."), begun)
    body = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": "I like kiwis."}]}
    with proxy.client.stream("POST", "/v1/chat/completions", json=body, headers=WHO) as got:
        assert any("Noted" in piece for piece in got.iter_text())
        assert until(lambda: fact_texts(proxy) == ["Likes kiwis."])


def test_an_answer_that_broke_off_has_reached_the_caller(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    broken = [HEAD, chunk(ROLE), chunk(delta(content="I will re")), END]
    says(upstream, calling("memory_store", text="Likes kiwis."), broken)
    got = ask(proxy, stream=True)
    assert transcript(got.content).text == "I will re"
    assert until(lambda: fact_texts(proxy) == ["Likes kiwis."])


def test_what_a_filter_spoils_before_anything_went_out_has_not(
    serve: Serve, upstream: FakeUpstream, tmp_path: Path
) -> None:
    (tmp_path / "moody.py").write_text(MOODY)
    config = f"filters: [moody.py]\n{CONFIG}".replace("request: [inject_facts]", "answer: [moody]")
    proxy = serve(config, MEMORY_URL=f"sqlite:{tmp_path / 'memory.db'}")
    for stream in (True, False):
        says(upstream, calling("memory_store", text="Likes kiwis."), saying("Noted."))
        got = ask(proxy, stream=stream)
        assert transcript(got.content).text == ""
        assert "filter" in got.text
    assert fact_texts(proxy) == []


MOODY = """
from filters.base import AnswerFilter

class Stage:
    def feed(self, delta):
        raise ValueError

    def close(self):
        return {}

class Moody(AnswerFilter):
    def open(self, context):
        return Stage()
"""


def test_what_is_called_beside_the_clients_own_call_is_kept(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    names = {"memory_store": {"text": "Likes kiwis."}, "weather": {}}
    calls = [
        {"index": i, "id": f"c{i}", "type": "function", "function": {"name": n, "arguments": json.dumps(a)}}
        for i, (n, a) in enumerate(names.items())
    ]
    says(upstream, sse(ROLE + delta(tool_calls=calls) + delta(finish="tool_calls") + DONE))
    tools = [{"type": "function", "function": {"name": "weather"}}]
    assert "weather" in ask(proxy, stream=True, tools=tools).text
    assert fact_texts(proxy) == ["Likes kiwis."]


def test_whoever_is_forgotten_during_the_turn_stays_forgotten(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    def forgotten(request: Any) -> list[Step]:
        assert httpx2.delete(f"{proxy.root}/v1/memory/users/ann").status_code == 204
        return sse(stream_of("Noted."))

    says(upstream, calling("memory_store", text="Likes kiwis."), forgotten)
    assert transcript(ask(proxy, stream=True).content).text == "Noted."
    assert fact_texts(proxy) == []


def test_within_the_turn_the_model_finds_what_it_stored_and_not_what_it_forgot(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    held = proxy.client.post(FACTS, json={"text": "Likes kiwis on Mondays."}).json()["id"]
    recall = calling("memory_recall", query="kiwis")
    says(
        upstream,
        calling("memory_store", text="Likes kiwis."),
        calling("memory_store", text="likes kiwis"),
        calling("memory_forget", id=held),
        recall,
        saying("Noted."),
    )
    ask(proxy, stream=True)
    first, second = tool_result(upstream, 1), tool_result(upstream, 2)
    assert first == second
    found = tool_result(upstream)["found"]
    assert [(one["text"], one["id"], one["kind"]) for one in found] == [("Likes kiwis.", first["id"], "fact")]
    assert fact_texts(proxy) == ["Likes kiwis."]
    says(
        upstream, calling("memory_store", text="Has a dog."), calling_back(upstream), recall, saying("Gone.")
    )
    ask(proxy, stream=True)
    assert fact_texts(proxy) == ["Likes kiwis."]


def calling_back(upstream: FakeUpstream) -> Script:
    """Takes back what was stored last, in the same turn."""
    return lambda request: calling(
        "memory_forget", id=json.loads(request.json["messages"][-1]["content"])["id"]
    )(request)


@pytest.mark.faults
def test_a_client_who_leaves_before_anything_came_leaves_nothing(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    says(upstream, calling("memory_store", text="Likes kiwis."), [30.0])
    body = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": "I like kiwis."}]}
    with pytest.raises(httpx2.TimeoutException):
        proxy.client.post("/v1/chat/completions", json=body, headers=WHO, timeout=0.6)
    assert until(lambda: upstream.open == 0)
    assert tool_result(upstream)["stored"] is True
    assert fact_texts(proxy) == []


@pytest.mark.faults
def test_a_client_who_leaves_in_the_middle_has_heard_of_it(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    begun = [HEAD, chunk(ROLE), chunk(delta(content="I will re")), 30.0]
    says(upstream, calling("memory_store", text="Likes kiwis."), begun)
    body = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": "I like kiwis."}]}
    with proxy.client.stream("POST", "/v1/chat/completions", json=body, headers=WHO) as got:
        assert "I will re" in next(text for text in got.iter_text() if "I will" in text)
    assert until(lambda: fact_texts(proxy) == ["Likes kiwis."])
