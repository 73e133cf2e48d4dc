"""A call that never got a result: a strict model takes the talk all the same, whatever is replayed."""

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest

from tests.conftest import AGORA
from tests.peers.fake_upstream import FakeUpstream, Received, Step, answer, calling, sse, stream_of
from tests.peers.strict_upstream import judge
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import stored_entries, user

STUB = "No result: the call was not completed."
CALLS = [{"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]
ASKED: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": CALLS}


def model(request: Received) -> Iterable[Step]:
    """It calls a tool where it is asked to look, and refuses what OpenAI refuses."""
    if refusal := judge("openai", request.json):
        return answer(refusal.body, refusal.status)
    newest = request.json["messages"][-1]
    if newest["role"] == "user" and newest["content"].startswith("Look"):
        return calling("weather", stream=True)
    return sse(stream_of(f"So much for {len(request.json['messages'])}."))


@pytest.fixture
def proxy(serve: Serve, upstream: FakeUpstream) -> ProxyServer:
    upstream.script = model
    return serve(AGORA.read_text().replace("deadline: 50ms", "deadline: 5s"))


def say(proxy: ProxyServer, upstream: FakeUpstream, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    """One turn; what the model was shown of it."""
    got = proxy.chat(list(messages), headers={"X-Session-Id": "s1"}, stream=True)
    assert got.status_code == 200, got.text
    stored_entries(proxy)
    return next(r.json["messages"] for r in reversed(upstream.requests) if r.body and r.json.get("stream"))


@pytest.mark.parametrize("numbered", [True, False], ids=["numbered", "unnumbered"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 40])
def test_the_talk_goes_on_while_the_call_slides_out_of_the_window(
    proxy: ProxyServer, upstream: FakeUpstream, size: int, numbered: bool
) -> None:
    history: list[dict[str, Any]] = []
    prompts: list[list[dict[str, Any]]] = []
    for turn in range(8):
        words = "Look outside." if turn == 2 else f"Question {turn}."
        told = {"turn_id": turn, "timestamp": 1000 + turn} if numbered else {}
        history.append(user(words) | told)
        shown = say(proxy, upstream, *history[-size:])
        prompts.append(shown)
        said = {"role": "assistant", "content": f"So much for {len(shown)}."}
        history.append((ASKED if turn == 2 else said) | told)
    results = [message["content"] for message in prompts[-1] if message["role"] == "tool"]
    assert results == [STUB]
    assert all(after[: len(before)] == before for before, after in pairwise(prompts))


@pytest.mark.parametrize("late", [False, True], ids=["at once", "a turn late"])
def test_a_client_that_sends_the_newest_alone_sends_a_result_to_its_call(
    proxy: ProxyServer, upstream: FakeUpstream, late: bool
) -> None:
    say(proxy, upstream, user("Look outside."))
    if late:
        say(proxy, upstream, user("Are you there?"))
    result = {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."}
    shown = say(proxy, upstream, result)
    assert shown[1:3] == [ASKED, result]
    again = say(proxy, upstream, user("Thanks."))
    assert again[1:3] == [ASKED, result]
    assert STUB not in json.dumps(again)
