"""A model calls tools of ours, and the client sees one answer."""

import json

import pytest
from msgspec import Raw

from proxy.answer.transcript import transcript
from proxy.errors import UpstreamBroken, UpstreamRefused
from proxy.tools.memory_tools import TOOLS, Offer, offer_tools
from proxy.tools.rounds import Dialogue, Rounds, Tools
from tests.peers.fake_upstream import DONE, ROLE, delta, stream_of
from tests.rounds import DUE, JSON, OWN, SSE, Answer, Kit, calling, chunks, shown, usage

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.parametrize("size", [1, 2, 7, 50, 133, 400, 10_000])
async def test_an_answer_without_calls_of_ours_passes_as_it_came(size):
    for body in (
        stream_of("Hello ", "there."),
        calling("weather"),
        calling("weather", "time", words="One moment. "),
    ):
        seen, done, asked = await shown(body, size=size)
        assert (seen, done, asked) == (body, [], [])


async def test_a_call_of_ours_is_carried_out_and_the_answer_goes_on():
    seen, done, asked = await shown(
        calling("memory_recall", words="Let me see. "),
        ROLE + delta(content="Ann.") + delta(finish="stop") + usage(20, 4) + DONE,
    )
    assert done == [("memory_recall", '{"query": "name"}')]
    [([call, result], last)] = asked
    assert (call.content, call.tool_calls[0]["id"], last) == ("Let me see. ", "call_0", False)
    assert (result.tool_call_id, result.content) == ("call_0", '{"found": []}')
    told = transcript(seen)
    assert (told.text, told.tool_calls, told.finished) == ("Let me see. Ann.", None, True)
    assert b"memory_recall" not in seen
    assert seen.count(b"[DONE]") == 1
    assert sum(bool(c["choices"] and c["choices"][0]["finish_reason"]) for c in chunks(seen)) == 1
    assert sum(bool(c["choices"] and c["choices"][0]["delta"].get("role")) for c in chunks(seen)) == 1
    assert len({c["id"] for c in chunks(seen)}) == 1
    [used] = [c["usage"] for c in chunks(seen) if c.get("usage")]
    assert used == {
        "prompt_tokens": 30,
        "completion_tokens": 7,
        "total_tokens": 37,
        "prompt_tokens_details": {"cached_tokens": 28},
    }


async def test_of_a_mixed_round_only_the_clients_calls_go_out():
    seen, done, asked = await shown(calling("memory_store", "weather"))
    assert [name for name, _ in done] == ["memory_store"]
    assert asked == []
    told = transcript(seen)
    assert [call["function"]["name"] for call in told.tool_calls] == ["weather"]
    assert told.tool_calls[0]["function"]["arguments"] == '{"query": "name"}'
    assert [c["choices"][0]["finish_reason"] for c in chunks(seen) if c["choices"]][-1] == "tool_calls"
    assert b"memory_store" not in seen


async def test_the_last_round_calls_nothing_of_ours():
    said = calling("memory_recall", words="I do not know. ")
    seen, done, asked = await shown(*[calling("memory_recall")] * 2, said, most=2)
    assert [last for _, last in asked] == [False, True]
    assert len(done) == 2
    assert [c["choices"][0]["finish_reason"] for c in chunks(seen) if c["choices"]][-1] == "stop"
    assert transcript(seen).text == "I do not know. "
    assert seen.endswith(DONE)


def whole_call():
    call = {"id": "call_0", "type": "function", "function": {"name": "memory_recall", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}).encode()


@pytest.mark.parametrize(("body", "headers"), [(calling("memory_recall"), SSE), (whole_call(), JSON)])
async def test_who_is_offered_none_of_ours_calls_one_and_says_nothing_has_not_answered(body, headers):
    with pytest.raises(UpstreamBroken, match="memory tools"):
        await shown(*[body] * 4, most=2, headers=headers)


async def test_what_was_said_before_is_an_answer_whatever_the_last_round_calls():
    seen, _, asked = await shown(
        calling("memory_recall", words="Well. "), *[calling("memory_recall")] * 2, most=2
    )
    assert (transcript(seen).text, len(asked), seen.endswith(DONE)) == ("Well. ", 2, True)


async def test_a_whole_answer_is_one_as_well():
    def whole(message, finish, used):
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return json.dumps(
            {"id": f"c{used}", "created": used, "choices": [choice], "usage": {"total_tokens": used}}
        ).encode()

    call = {"id": "call_0", "type": "function", "function": {"name": "memory_recall", "arguments": "{}"}}
    first = whole({"role": "assistant", "content": "Well, ", "tool_calls": [call]}, "tool_calls", 3)
    last = whole({"role": "assistant", "content": "Ann."}, "stop", 4)
    seen, done, _ = await shown(first, last, headers=JSON)
    answer = json.loads(seen)
    assert done == [("memory_recall", "{}")]
    assert answer["id"] == "c3"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "Well, Ann."}
    assert answer["usage"] == {"total_tokens": 7}
    assert (await shown(last, headers=JSON))[0] == last


async def test_an_error_between_two_rounds_is_the_answers():
    async def again(due):
        raise UpstreamRefused(429, b"", {})

    dialogue = Dialogue(Tools(Offer({}, OWN, {}, {}), Kit(), 2))
    rounds = Rounds(Answer(calling("memory_recall")), again, dialogue, 0, DUE)
    with pytest.raises(UpstreamRefused):
        while await rounds.read():
            pass


def raw(**fields):
    return {name: Raw(json.dumps(value).encode()) for name, value in fields.items()}


def test_tools_stand_behind_the_clients_own_and_give_way_to_their_names():
    theirs = [
        {"type": "function", "function": {"name": "memory_store"}},
        {"type": "custom", "custom": {"name": "x"}},
    ]
    offer = offer_tools(raw(tools=theirs, model="m"), list(TOOLS))
    tools = json.loads(bytes(offer.fields["tools"]))
    assert tools[:2] == theirs
    assert [tool["function"]["name"] for tool in tools[2:]] == ["memory_recall", "memory_forget"]
    assert offer.names == {"memory_recall", "memory_forget"}
    assert offer_tools(raw(tools=theirs), ["memory_store"]) is None


@pytest.mark.parametrize("fields", [{"n": 2}, {"functions": []}, {"tools": "x"}])
def test_a_request_that_cannot_bear_tools_gets_none(fields):
    assert offer_tools(raw(**fields), list(TOOLS)) is None


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 1},
        {"tools": None},
        {"tools": [{"type": "function", "function": {"name": []}}]},
        {"tool_choice": "none"},
        {"tool_choice": {"type": "function"}},
    ],
)
def test_every_other_request_gets_them(fields):
    assert offer_tools(raw(**fields), list(TOOLS)).names == OWN


def test_in_the_last_round_our_tools_are_out_of_reach():
    fields = raw(model="m")
    assert bytes(offer_tools(fields, list(TOOLS)).final_fields["tool_choice"]) == b'"none"'
    fields = raw(tools=[{"type": "function", "function": {"name": "weather"}}], tool_choice="required")
    assert offer_tools(fields, list(TOOLS)).final_fields is fields


def called(piece_of):
    """Two calls at once as servers stream them whose pieces ``piece_of`` makes, of call, place and words."""
    recalling, asking = '{"query": "name"}', '{"city": "Rome"}'
    pieces = [
        piece_of("call_a", 0, {"name": "memory_recall", "arguments": recalling[:4]}),
        piece_of("call_a", 0, {"arguments": recalling[4:]}),
        piece_of("call_b", 1, {"name": "weather", "arguments": asking[:4]}),
        piece_of("call_b", 1, {"arguments": asking[4:]}),
    ]
    deltas = [delta(tool_calls=[piece]) for piece in pieces]
    return b"".join([ROLE, *deltas, delta(finish="tool_calls"), DONE])


def once(call, words):
    return {"id": call} if "name" in words else {}


@pytest.mark.parametrize(
    "piece_of",
    [
        lambda call, place, words: {"index": place, "function": words, **once(call, words)},
        lambda call, place, words: {"index": place, "function": words, "id": call},
        lambda call, place, words: {"index": 0, "function": words, **once(call, words)},
        lambda call, place, words: {"index": 0, "function": words, "id": call},
        lambda call, place, words: {"function": words, "id": call},
        lambda call, place, words: {"index": place, "function": words, "id": f"{call}{len(words)}"},
    ],
    ids=["openai", "ids throughout", "one index", "one index and ids", "no index", "an id for each piece"],
)
async def test_calls_are_told_apart_however_they_are_numbered(piece_of):
    seen, done, asked = await shown(called(piece_of))
    assert (done, asked) == ([("memory_recall", '{"query": "name"}')], [])
    [call] = transcript(seen).tool_calls
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Rome"}'}
    assert call["id"].startswith("call_b")


SIGNED = {"extra_content": {"google": {"thought_signature": "c2ln"}}}


def signed(*names):
    functions = [{"name": name, "arguments": "{}"} for name in names]
    calls = [
        {"index": i, "id": f"call_{i}", "type": "function", "function": function, **SIGNED}
        for i, function in enumerate(functions)
    ]
    return ROLE + delta(tool_calls=calls) + delta(finish="tool_calls") + DONE


async def test_what_else_is_said_of_a_call_returns_with_it():
    _, _, [([call, _], _)] = await shown(signed("memory_recall"), stream_of("Ann."))
    assert call.tool_calls[0]["extra_content"] == SIGNED["extra_content"]
    assert "index" not in call.tool_calls[0]


async def test_what_else_is_said_of_the_clients_own_call_goes_out_with_it():
    seen, _, _ = await shown(signed("memory_store", "weather"))
    [call] = transcript(seen).tool_calls
    assert (call["id"], call["extra_content"]) == ("call_1", SIGNED["extra_content"])
