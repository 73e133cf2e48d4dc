"""How many tokens all rounds of an answer took together, however an upstream tells it."""

import json

import pytest

from proxy.answer.transcript import transcript
from proxy.observe.observation import usage_of
from tests.peers.fake_upstream import DONE, delta, event
from tests.rounds import JSON, chunks, shown

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


def counts(prompt, completion):
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def call_of(*names):
    return [
        {"index": place, "id": f"call_{place}", "function": {"name": name, "arguments": "{}"}}
        for place, name in enumerate(names)
    ]


def deltas(*names, words):
    """Returns the words of a round, and the tool calls after them."""
    said = [{"role": "assistant", "content": ""}, *({"content": word} for word in words)]
    return [*said, *({"tool_calls": [call]} for call in call_of(*names))]


def in_every_chunk(prompt, *names, words=()):
    """A round of an upstream that sends its usage so far in each chunk."""
    given = deltas(*names, words=words)
    parts = [
        event(choices=[{"index": 0, "delta": each, "finish_reason": None}], usage=counts(prompt, place))
        for place, each in enumerate(given, 1)
    ]
    finish = {"index": 0, "delta": {}, "finish_reason": "tool_calls" if names else "stop"}
    return b"".join([*parts, event(choices=[finish], usage=counts(prompt, len(given))), DONE])


def at_the_start(prompt, *names, words=()):
    """A round of an upstream that sends its usage at the start."""
    first = event(choices=[], usage=counts(prompt, len(deltas(*names, words=words))))
    rest = b"".join(delta(**each) for each in deltas(*names, words=words))
    return first + rest + delta(finish="tool_calls" if names else "stop") + DONE


def at_the_end(prompt, *names, words=()):
    """A round as OpenAI streams it."""
    given = deltas(*names, words=words)
    rest = b"".join(delta(**each) for each in given) + delta(finish="tool_calls" if names else "stop")
    return rest + event(choices=[], usage=counts(prompt, len(given))) + DONE


every_form = pytest.mark.parametrize("form", [in_every_chunk, at_the_start, at_the_end])


@every_form
@pytest.mark.parametrize("size", [1, 77, 10_000])
async def test_each_round_counts_once(form, size):
    seen, done, _ = await shown(
        form(10, "memory_recall", words=["Let ", "me ", "see. "]),
        form(20, "memory_recall", "memory_store"),
        form(40, words=["Ann", "."]),
        size=size,
    )
    assert len(done) == 3
    assert transcript(seen).text == "Let me see. Ann."
    assert usage_of(seen)[:2] == (70, 11)


@every_form
async def test_what_a_round_of_mixed_calls_took_counts_as_well(form):
    seen, _, _ = await shown(form(10, "memory_recall"), form(20, "memory_store", "weather", words=["Hm. "]))
    assert usage_of(seen)[:2] == (30, 6)
    assert transcript(seen).tool_calls[0]["function"]["name"] == "weather"


@every_form
async def test_what_the_clients_own_calls_took_counts_behind_a_round_of_ours(form):
    seen, _, _ = await shown(form(10, "memory_recall"), form(20, "weather"))
    assert usage_of(seen)[:2] == (30, 4)


async def test_what_is_told_in_every_chunk_grows():
    seen, _, _ = await shown(in_every_chunk(10, "memory_recall"), in_every_chunk(20, words=["A", "n", "n"]))
    told = [chunk["usage"]["completion_tokens"] for chunk in chunks(seen) if chunk.get("usage")]
    assert told == sorted(told)
    assert told[-1] == 6


async def test_where_nothing_is_told_nothing_is_made_up():
    rounds = [
        b"".join(delta(**each) for each in deltas(*names, words=[])) for names in (["memory_recall"], [])
    ]
    seen, _, _ = await shown(
        rounds[0] + DONE, rounds[1] + delta(content="Ann.") + delta(finish="stop") + DONE
    )
    assert b'"usage"' not in seen


def whole(prompt, *names, usage=True):
    message = {"role": "assistant", "content": None if names else "Ann.", "tool_calls": call_of(*names)}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if names else "stop"}
    used = {"usage": counts(prompt, 1)} if usage else {}
    return json.dumps({"id": "c", "choices": [choice], **used}).encode()


async def test_so_it_is_with_whole_answers():
    rounds = [whole(10, "memory_recall"), whole(20, "memory_recall"), whole(40)]
    assert usage_of((await shown(*rounds, headers=JSON))[0])[:2] == (70, 3)
    rounds = [whole(10, "memory_recall"), whole(20, "memory_store", "weather")]
    assert usage_of((await shown(*rounds, headers=JSON))[0])[:2] == (30, 2)
    rounds = [whole(10, "memory_recall"), whole(20, usage=False)]
    assert usage_of((await shown(*rounds, headers=JSON))[0])[:2] == (10, 1)
