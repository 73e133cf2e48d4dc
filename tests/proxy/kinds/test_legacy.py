import json
from typing import Any

import pytest

from proxy.upstream.body import compose
from proxy.upstream.providers import PROVIDERS
from tests.bodies import fields_of, messages_of
from tests.peers.strict_upstream import judge

FUNCTION = {"name": "end_call", "description": "Ends it.", "parameters": {"minimum": 1.0}}
BODY = {"functions": [FUNCTION], "function_call": "auto"}
MESSAGES = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": "{}", "x": 1}},
    {"role": "function", "name": "weather", "content": "Rain."},
    {"role": "assistant", "content": "It rains."},
    {"role": "user", "content": "And now?"},
]

keeps = pytest.mark.parametrize("name", ["openai", "azure", "any", "groq"])
lacks = pytest.mark.parametrize("name", ["mistral", "gemini", "anthropic", "vllm"])


def sent(name: str, body: dict[str, Any], messages: list[dict[str, Any]] = MESSAGES) -> dict[str, Any]:
    return json.loads(compose(PROVIDERS[name], fields_of(body), messages_of(messages)))


@keeps
def test_functions_go_on_where_they_are_taken(name):
    composed = sent(name, BODY)
    assert composed | {"messages": []} == {**BODY, "messages": []}
    assert composed["messages"][1]["function_call"] == {"name": "weather", "arguments": "{}"}
    assert composed["messages"][2] == MESSAGES[2]


@lacks
def test_functions_become_tools_where_they_are_not(name):
    composed = sent(name, BODY)
    assert composed["tools"] == [{"type": "function", "function": FUNCTION}]
    assert composed["tool_choice"] == "auto"
    assert composed.keys() == {"tools", "tool_choice", "messages"}


@lacks
def test_a_named_function_becomes_a_chosen_tool(name):
    choice = sent(name, {**BODY, "function_call": {"name": "end_call"}})["tool_choice"]
    assert choice == {"type": "function", "function": {"name": "end_call"}}


@lacks
@pytest.mark.parametrize(
    "body", [{"functions": []}, {"functions": None}, {"functions": "x"}, {"function_call": "auto"}]
)
def test_without_a_function_there_is_no_tool(name, body):
    assert sent(name, body).keys() == {"messages"}


@lacks
@pytest.mark.parametrize("choice", ["sometimes", 1, None, {}])
def test_a_choice_that_says_nothing_known_is_not_sent(name, choice):
    assert sent(name, {**BODY, "function_call": choice}).keys() == {"tools", "messages"}


@lacks
def test_tools_count_before_functions(name):
    assert sent(name, {**BODY, "tools": []})["tools"] == []


@lacks
def test_a_call_and_its_result_find_each_other(name):
    composed = sent(name, {})
    call, result = composed["messages"][1:3]
    assert call["tool_calls"][0]["function"] == {"name": "weather", "arguments": "{}"}
    assert result["role"] == "tool"
    assert result["tool_call_id"] == call["tool_calls"][0]["id"]
    assert "function_call" not in call
    assert judge(name, composed) is None


@lacks
def test_a_call_that_is_null_is_no_call(name):
    message = {"role": "assistant", "content": "Hi", "function_call": None}
    composed = sent(name, {}, [MESSAGES[0], message, MESSAGES[-1]])
    assert composed["messages"][1] == {"role": "assistant", "content": "Hi"}
