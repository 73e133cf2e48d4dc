"""Ids of tool calls, where an upstream does not take what another one made up."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.upstream.body import compose
from proxy.upstream.providers import PROVIDERS
from tests.bodies import conversations, messages_of
from tests.peers.strict_upstream import judge


def composed(kind, messages):
    return json.loads(compose(PROVIDERS[kind], {}, messages_of(messages)))["messages"]


def talk(*ids):
    """A call under each of these ids, and its result."""
    calls = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in ids]
    results = [{"role": "tool", "content": "Yes.", "tool_call_id": name} for name in ids]
    return [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        *results,
    ]


OF_VENDORS = [
    "call_abcdefghijklmnopqrstuvwx",  # OpenAI
    "toolu_01A09q90qw90lq917835lq9",  # Anthropic
    "functions.weather:0",  # Kimi
    "chatcmpl-tool-0123456789abcdef",  # vLLM
    "call_1",
    "",
    "ünïcödé!!",
]


def test_mistral_gets_ids_that_it_takes_each_its_own():
    sent = composed("mistral", talk(*OF_VENDORS))
    assert judge("mistral", {"model": "m", "messages": sent}) is None
    ids = [call["id"] for call in sent[1]["tool_calls"]]
    assert ids == [result["tool_call_id"] for result in sent[2:]]
    assert len(set(ids)) == len(OF_VENDORS)


def test_its_own_stay_as_they_are():
    assert composed("mistral", talk("D681PevKs", "abcdefgh1")) == talk("D681PevKs", "abcdefgh1")


def test_the_same_id_is_the_same_in_every_turn():
    """The prompt's beginning does not change as a conversation grows."""
    before = composed("mistral", talk("call_1"))
    assert composed("mistral", [*talk("call_1"), *talk("call_2")])[: len(before)] == before


@pytest.mark.parametrize("kind", sorted(set(PROVIDERS) - {"mistral"}))
def test_all_others_get_them_as_they_came(kind):
    sent = composed(kind, talk(*OF_VENDORS))
    assert [call["id"] for call in sent[1]["tool_calls"]] == OF_VENDORS


@given(conversations(), st.none() | st.integers(-9, 9) | st.just([]))
def test_an_id_that_is_none_is_no_fault_of_ours(messages, odd):
    call = {"id": odd, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    given = [[call], [{}], [], None]
    said = [{"role": "assistant", "content": "Hi", "tool_calls": calls} for calls in given]
    sent = composed("mistral", [*messages, *said])
    assert [message["tool_calls"] for message in sent if message.get("content") == "Hi"][-4:] == given
