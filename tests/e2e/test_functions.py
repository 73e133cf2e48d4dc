"""OpenAI's first form of tools: a function call is remembered with its result, and comes back as it was."""

import json
from typing import Any

import pytest

from tests.peers.fake_upstream import (
    DONE,
    HEAD,
    RESET,
    ROLE,
    FakeUpstream,
    answer,
    chunk,
    completion,
    delta,
    sse,
    stream_of,
)
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import CONFIG, assistant_message, call, stored_entries, user

WEATHER = {"name": "weather", "arguments": '{"town": "Rome"}'}
CALL: dict[str, Any] = {"role": "assistant", "content": None, "function_call": WEATHER}
RESULT: dict[str, Any] = {"role": "function", "name": "weather", "content": "Rain."}
PIECES = [{"name": "weather", "arguments": ""}, {"arguments": '{"town"'}, {"arguments": ': "Rome"}'}]
CALLED = (
    ROLE + b"".join(delta(function_call=piece) for piece in PIECES) + delta(finish="function_call") + DONE
)
OFFER: dict[str, Any] = {"functions": [{"name": "weather", "parameters": {}}], "stream": True}
MARKS = ("turn_id", "metadata", "timestamp")


def contents(proxy: ProxyServer) -> list[dict[str, Any]]:
    stored_entries(proxy)
    found: list[dict[str, Any]] = proxy.client.get("/v1/memory/sessions/s1").json()["contents"]
    return [{name: value for name, value in each.items() if name not in MARKS} for each in found]


def shown(upstream: FakeUpstream) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = upstream.last.json["messages"]
    return messages


def called(proxy: ProxyServer, upstream: FakeUpstream, *window: dict[str, Any]) -> None:
    """A turn in which the function is called, told, and talked about."""
    upstream.says(*sse(CALLED))
    call(proxy, *window, user("Is it raining?"), **OFFER)
    stored_entries(proxy)
    upstream.says(*sse(stream_of("It is.")))
    call(proxy, *window, user("Is it raining?"), CALL, RESULT, **OFFER)
    stored_entries(proxy)


TALK = [user("Is it raining?"), CALL, RESULT, assistant_message("It is.")]


def test_a_call_comes_back_with_its_result(serve: Serve, upstream: FakeUpstream) -> None:
    proxy = serve(CONFIG)
    called(proxy, upstream)
    assert contents(proxy) == TALK
    upstream.says(*sse(stream_of("Bye.")))
    call(proxy, user("Well then."), **OFFER)
    assert shown(upstream) == [*TALK, user("Well then.")]


def test_a_whole_answer_may_call_as_well(serve: Serve, upstream: FakeUpstream) -> None:
    proxy = serve(CONFIG)
    whole = completion()
    whole["choices"][0] |= {"message": CALL, "finish_reason": "function_call"}
    upstream.says(*answer(whole))
    call(proxy, user("Is it raining?"), functions=OFFER["functions"])
    assert contents(proxy) == [user("Is it raining?"), CALL]


@pytest.mark.parametrize("arguments", ['{"town": "Rome"}', '{"town":"Rome"}'])
def test_what_is_replayed_is_held_once(serve: Serve, upstream: FakeUpstream, arguments: str) -> None:
    proxy = serve(CONFIG)
    called(proxy, upstream)
    again = {**CALL, "function_call": {**WEATHER, "arguments": arguments}}
    called(proxy, upstream, user("Is it raining?"), again, RESULT, assistant_message("It is."))
    assert [each["role"] for each in contents(proxy)] == ["user", "assistant", "function", "assistant"] * 2
    upstream.says(*sse(stream_of("Bye.")))
    window = [RESULT, assistant_message("It is."), user("Well then.")]
    call(proxy, *window, **OFFER)
    assert [each["role"] for each in contents(proxy)][8:] == ["user", "assistant"]
    assert len(contents(proxy)) == 10


def test_a_window_that_slid_gets_its_calls_back(serve: Serve, upstream: FakeUpstream) -> None:
    proxy = serve(CONFIG)
    called(proxy, upstream)
    upstream.says(*sse(stream_of("Bye.")))
    call(proxy, assistant_message("It is."), user("Well then."), **OFFER)
    assert shown(upstream) == [*TALK, user("Well then.")]


def test_a_result_alone_goes_behind_its_call(serve: Serve, upstream: FakeUpstream) -> None:
    proxy = serve(CONFIG)
    upstream.says(*sse(CALLED))
    call(proxy, user("Is it raining?"), **OFFER)
    stored_entries(proxy)
    upstream.says(*sse(stream_of("It is.")))
    call(proxy, RESULT, **OFFER)
    assert shown(upstream) == TALK[:3]
    assert contents(proxy) == TALK


def test_a_call_that_was_never_told_gets_a_result(serve: Serve, upstream: FakeUpstream) -> None:
    proxy = serve(CONFIG)
    upstream.says(*sse(CALLED))
    call(proxy, user("Is it raining?"), **OFFER)
    stored_entries(proxy)
    upstream.says(*sse(stream_of("Yes?")))
    call(proxy, user("Hello?"), **OFFER)
    roles = [(each["role"], each.get("name")) for each in shown(upstream)]
    assert roles == [("user", None), ("assistant", None), ("function", "weather"), ("user", None)]


def test_a_call_that_broke_off_is_not_held(serve: Serve, upstream: FakeUpstream) -> None:
    proxy = serve(CONFIG)
    torn = ROLE + b"".join(delta(function_call=piece) for piece in PIECES[:2])
    upstream.says(HEAD, chunk(torn), 0.1, RESET)
    call(proxy, user("Is it raining?"), **OFFER)
    assert contents(proxy) == [user("Is it raining?")]


def test_it_is_carried_from_one_store_to_another(serve: Serve, upstream: FakeUpstream) -> None:
    proxy = serve(CONFIG)
    called(proxy, upstream)
    whole = proxy.client.get("/v1/memory/sessions/s1").json()
    assert proxy.client.put("/v1/memory/sessions/s2", json=json.loads(json.dumps(whole))).status_code < 300
    assert proxy.client.get("/v1/memory/sessions/s2").json()["contents"] == whole["contents"]
    plain = {"contents": contents(proxy)}
    assert proxy.client.put("/v1/memory/sessions/s3", json=plain).status_code < 300
    upstream.says(*sse(stream_of("Bye.")))
    call(proxy, user("Well then."), session="s3", **OFFER)
    assert shown(upstream) == [*TALK, user("Well then.")]


def test_a_model_that_knows_tools_alone_gets_the_pair_as_a_tools(
    serve: Serve, upstream: FakeUpstream
) -> None:
    mistral = CONFIG.replace('"${UPSTREAM_BASE_URL}"', '"${UPSTREAM_BASE_URL}", accepts: mistral')
    proxy = serve(mistral)
    called(proxy, upstream)
    upstream.says(*sse(stream_of("Bye.")))
    call(proxy, user("Well then."), **OFFER)
    [_, calling, result, *_] = shown(upstream)
    assert calling["tool_calls"][0]["function"] == WEATHER
    assert result["role"] == "tool"
    assert result["tool_call_id"] == calling["tool_calls"][0]["id"]
