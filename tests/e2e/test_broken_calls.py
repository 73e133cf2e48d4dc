"""Tool calls as they are remembered: whole, or not at all; and in every form that OpenAI has had for them."""

from typing import Any

import pytest

from tests.peers.fake_upstream import DONE, HEAD, RESET, ROLE, FakeUpstream, chunk, delta, sse, stream_of
from tests.proxy_server import Serve
from tests.remembering import CONFIG, call, stored_entries, texts, user


def function(arguments: str, **more: Any) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": "w", "arguments": arguments}, **more}


def calling(*calls: dict[str, Any], words: str = "") -> bytes:
    indexed = [{"index": place, **each} for place, each in enumerate(calls)]
    return ROLE + (delta(content=words) if words else b"") + delta(tool_calls=indexed)


def shown(upstream: FakeUpstream) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = upstream.last.json["messages"]
    return messages


BROKEN = [function('{"a":'), function('{"a": "b'), function("{")]


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("words", ["", "One moment."])
def test_a_call_that_broke_off_is_never_shown_to_the_model(
    serve: Serve, upstream: FakeUpstream, broken: dict[str, Any], words: str
) -> None:
    proxy = serve(CONFIG)
    upstream.says(HEAD, chunk(calling(broken, words=words)), 0.1, RESET)
    call(proxy, user("Is it raining?"), stream=True)
    heard = [("user", "Is it raining?")] + ([("assistant", words)] if words else [])
    assert texts(stored_entries(proxy)) == heard
    assert not any(entry.tool_calls for entry in stored_entries(proxy))
    upstream.says(*sse(stream_of("It is.")))
    call(proxy, user("Well?"), stream=True)
    assert not any("tool_calls" in message for message in shown(upstream))
    assert [m["content"] for m in shown(upstream) if m["role"] == "user"] == ["Is it raining?", "Well?"]


def test_of_two_calls_the_one_that_came_whole_stays(serve: Serve, upstream: FakeUpstream) -> None:
    whole = function('{"a": 1}')
    proxy = serve(CONFIG)
    upstream.says(HEAD, chunk(calling(whole, function('{"a":', id="call_2"))), 0.1, RESET)
    call(proxy, user("Is it raining?"), stream=True)
    assert [entry.tool_calls for entry in stored_entries(proxy)] == [None, [whole]]


@pytest.mark.parametrize("arguments", ["", "{}", '{"a": 1}'])
def test_a_whole_call_stays_though_its_answer_broke_off(
    serve: Serve, upstream: FakeUpstream, arguments: str
) -> None:
    proxy = serve(CONFIG)
    upstream.says(HEAD, chunk(calling(function(arguments))), 0.1, RESET)
    call(proxy, user("Is it raining?"), stream=True)
    assert [entry.tool_calls for entry in stored_entries(proxy)] == [None, [function(arguments)]]


def test_a_call_that_a_model_ended_so_stays_as_it_made_it(serve: Serve, upstream: FakeUpstream) -> None:
    proxy = serve(CONFIG)
    upstream.says(*sse(calling(function('{"a":')) + delta(finish="tool_calls") + DONE))
    call(proxy, user("Is it raining?"), stream=True)
    assert [entry.tool_calls for entry in stored_entries(proxy)] == [None, [function('{"a":')]]


# --- custom tools

SQL = {"id": "call_1", "type": "custom", "custom": {"name": "sql", "input": "select * from t"}}
PIECES = [
    {"index": 0, "id": "call_1", "type": "custom", "custom": {"name": "sql", "input": ""}},
    {"index": 0, "custom": {"input": "select * "}},
    {"index": 0, "custom": {"input": "from t"}},
]
IN_PIECES = ROLE + b"".join(delta(tool_calls=[piece]) for piece in PIECES)


def test_what_a_custom_tool_is_given_is_put_together(serve: Serve, upstream: FakeUpstream) -> None:
    proxy = serve(CONFIG)
    upstream.says(*sse(IN_PIECES + delta(finish="tool_calls") + DONE))
    call(proxy, user("How many?"), stream=True)
    assert [entry.tool_calls for entry in stored_entries(proxy)] == [None, [SQL]]
    upstream.says(*sse(stream_of("Three.")))
    call(proxy, {"role": "tool", "tool_call_id": "call_1", "content": "3 rows"}, stream=True)
    assert [SQL] in [message.get("tool_calls") for message in shown(upstream)]


def test_what_a_custom_tool_was_to_be_given_is_dropped_where_its_answer_broke_off(
    serve: Serve, upstream: FakeUpstream
) -> None:
    proxy = serve(CONFIG)
    upstream.says(HEAD, chunk(IN_PIECES), 0.1, RESET)
    call(proxy, user("How many?"), stream=True)
    assert texts(stored_entries(proxy)) == [("user", "How many?")]
