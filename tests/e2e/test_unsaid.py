"""Words that the caller did not hear are not recalled, even before the archive has the correction."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.peers.fake_upstream import DONE, ROLE, FakeUpstream, delta, sse, stream_of
from tests.proxy_server import ProxyServer, Serve
from tests.waiting import awaited

CONFIG = """
memory: {sessions: "${MEMORY_URL}", deadline: 5s}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default: {upstreams: [main], request: [restore_history, restore_interrupted, recall]}
  tools: {upstreams: [main], tools: [memory_recall]}
"""
GREETING = {"role": "assistant", "content": "Hello, this is the practice."}
ASKED = {"role": "user", "content": "When is my appointment?"}
ANSWER = "Your appointment is on Tuesday, and the parking code is 4711."
HEARD = "Your appointment is"
AGAIN = {"role": "user", "content": "What is the parking code for my appointment?"}
MARKED = {"interrupted": True, "original": ANSWER, "source": "llm"}
SHOWN: dict[str, list[dict[str, Any]]] = {
    "cut": [{"role": "assistant", "content": HEARD}],
    "marked": [{"role": "assistant", "content": HEARD, "metadata": MARKED}],
    "left out": [],
}
WHO = {"x-session-id": "s1", "x-user-id": "ann"}


@pytest.fixture
def proxy(serve: Serve, upstream: FakeUpstream, tmp_path: Path) -> ProxyServer:
    upstream.script = lambda _: sse(stream_of(ANSWER))
    proxy = serve(CONFIG, MEMORY_URL=f"sqlite:{tmp_path / 'memory.db'}")
    proxy.chat([GREETING, ASKED], headers=WHO, stream=True)
    archived(proxy)
    return proxy


def archived(proxy: ProxyServer) -> None:
    """The answer is found, as it was generated."""
    memory, query = proxy.app.memory, {"user": "ann", "query": "parking code"}
    assert memory is not None and memory.archiving is not None
    archivist = memory.archiving.archivist

    def found() -> object:
        proxy.run(archivist.idle())
        return proxy.client.post("/v1/memory/search", json=query).json()["results"]

    awaited(found)


def asked_again(proxy: ProxyServer, how: str, session: str = "s1", pipeline: str = "default") -> None:
    body = {"model": "m", "stream": True, "messages": [GREETING, ASKED, *SHOWN[how], AGAIN]}
    headers = {**WHO, "x-session-id": session}
    path = f"/pipelines/{pipeline}/v1/chat/completions"
    proxy.client.post(path, json=body, headers=headers).raise_for_status()


@pytest.mark.parametrize("how", SHOWN)
def test_an_unheard_rest_is_not_recalled_as_said(
    proxy: ProxyServer, upstream: FakeUpstream, how: str
) -> None:
    asked_again(proxy, how)
    assert upstream.last.json["messages"][-1]["content"] == AGAIN["content"]


@pytest.mark.parametrize("how", SHOWN)
def test_a_model_does_not_look_it_up_as_said(proxy: ProxyServer, upstream: FakeUpstream, how: str) -> None:
    function = {"name": "memory_recall", "arguments": json.dumps({"query": "parking code"})}
    call = {"index": 0, "id": "call_1", "type": "function", "function": function}
    rounds = iter([sse(ROLE + delta(tool_calls=[call]) + delta(finish="tool_calls") + DONE)])
    upstream.script = lambda _: next(rounds, sse(stream_of("So.")))
    asked_again(proxy, how, pipeline="tools")
    told = json.loads(upstream.last.json["messages"][-1]["content"])
    assert "found" in told and ANSWER not in {one["text"] for one in told["found"]}


def test_what_is_not_taken_back_is_recalled(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    asked_again(proxy, "cut", session="another")
    assert f"you said: {ANSWER}" in upstream.last.json["messages"][-1]["content"]
