"""Rounds that are not as OpenAI would have them: nothing is lost, done twice or made up."""

import asyncio
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.answer.transcript import transcript
from proxy.errors import UpstreamBroken
from proxy.tools.memory_tools import offer_tools
from tests.peers.fake_upstream import DONE, ROLE, delta, event, stream_of
from tests.rounds import JSON, SSE, chunks, shown

pytestmark = pytest.mark.anyio
RECALL = {"id": "call_1", "type": "function", "function": {"name": "memory_recall", "arguments": "{}"}}
WEATHER = {"id": "call_2", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
FINISH = delta(finish="tool_calls")


@pytest.fixture
def anyio_backend():
    return "asyncio"


def whole(message, finish="stop", **more):
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return json.dumps({"id": "c1", "choices": [choice], **more}).encode()


def roles(seen):
    given = [chunk["choices"][0]["delta"] for chunk in chunks(seen) if chunk["choices"]]
    return [delta.get("role") for delta in given]


# --- what strict upstreams need


@pytest.mark.parametrize(
    "arguments", ["", "{", '{"text": "Ann is', '{"a": 1}}', "null", "[1]", "Ann", '"{}"']
)
@pytest.mark.parametrize("stream", [True, False])
async def test_what_is_no_json_is_told_to_be_none_and_not_shown_to_the_next_round(arguments, stream):
    """Templates of vLLM, Mistral and others decode what a call was given, and refuse the request."""
    broken = {**RECALL, "function": {"name": "memory_recall", "arguments": arguments}}
    called = ROLE + delta(tool_calls=[{"index": 0, **broken}]) + delta(finish="length") + DONE
    bodies = (
        [called, stream_of("Ann.")]
        if stream
        else [whole({"tool_calls": [broken]}), whole({"content": "Ann."})]
    )
    seen, done, [([call, result], _)] = await shown(*bodies, headers=SSE if stream else JSON)
    assert transcript(seen).text == "Ann."
    assert done == [("memory_recall", arguments)], "who carries it out tells what is wrong with it"
    assert isinstance(json.loads(call.tool_calls[0]["function"]["arguments"]), dict)
    assert result.tool_call_id == call.tool_calls[0]["id"]


# --- what the client needs


@pytest.mark.parametrize(
    "rounds",
    [
        [delta(role="assistant", content=None, tool_calls=[RECALL]) + FINISH + DONE, stream_of("Ann", ".")],
        [delta(role="assistant", tool_calls=[RECALL, WEATHER]) + FINISH + DONE],
        [ROLE + delta(tool_calls=[RECALL]) + FINISH + DONE, stream_of("Ann", ".")],
        [ROLE + delta(tool_calls=[RECALL, WEATHER]) + FINISH + DONE],
        [delta(role="assistant", content="Hm.", tool_calls=[RECALL]) + FINISH + DONE, stream_of("Ann.")],
        [
            *[delta(role="assistant", tool_calls=[RECALL]) + FINISH + DONE] * 4,
            delta(role="assistant", content="Hm.", tool_calls=[RECALL]) + FINISH + DONE,
        ],
    ],
    ids=["with the call", "with both calls", "alone", "alone, both", "with words", "in vain"],
)
async def test_the_first_delta_says_who_speaks(rounds):
    seen, _, _ = await shown(*rounds)
    assert roles(seen)[0] == "assistant"
    assert not any(roles(seen)[1:])


async def test_words_behind_a_call_are_heard_though_the_round_ends_with_them():
    first = ROLE + delta(tool_calls=[RECALL]) + delta(0, "tool_calls", content="One moment. ") + DONE
    seen, done, [([call, _], _)] = await shown(first, stream_of("Ann."))
    assert transcript(seen).text == "One moment. Ann."
    assert call.content == "One moment. "
    assert len(done) == 1


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_what_was_cut_short_says_so(reason):
    seen, _, _ = await shown(ROLE + delta(tool_calls=[RECALL, WEATHER]) + delta(finish=reason) + DONE)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks(seen)][-1] == reason
    seen, _, _ = await shown(whole({"tool_calls": [RECALL, WEATHER]}, reason), headers=JSON)
    assert json.loads(seen)["choices"][0]["finish_reason"] == reason


async def test_what_is_called_beside_the_clients_own_call_is_done_before_he_may_leave():
    done_by_then = []

    def noting(seen, kit):
        if DONE in seen:
            done_by_then.extend(kit.done)

    await shown(ROLE + delta(tool_calls=[RECALL, WEATHER]) + FINISH + DONE, watch=noting)
    assert done_by_then == [("memory_recall", "{}")]


async def test_content_in_parts_is_no_content_lost():
    parts = [{"type": "thinking", "thinking": []}, {"type": "text", "text": "Ann."}]
    seen, _, _ = await shown(
        whole({"content": None, "tool_calls": [RECALL]}), whole({"content": parts}), headers=JSON
    )
    assert json.loads(seen)["choices"][0]["message"]["content"] == parts
    first = whole({"content": [{"type": "text", "text": "Well. "}], "tool_calls": [RECALL]})
    seen, _, [([call, _], _)] = await shown(first, whole({"content": parts}), headers=JSON)
    assert call.content == "Well. "
    said = json.loads(seen)["choices"][0]["message"]["content"]
    assert said == [{"type": "text", "text": "Well. "}, *parts]
    odd = whole({"content": [None, 7, {"type": "text"}], "tool_calls": [RECALL]})
    seen, _, [([call, _], _)] = await shown(odd, whole({"content": "Ann."}), headers=JSON)
    assert (call.content, transcript(seen).text) == (None, "Ann.")


async def test_what_is_streamed_in_parts_is_told_to_the_model_as_well():
    first = ROLE + delta(content=[{"type": "text", "text": "Well. "}]) + delta(tool_calls=[RECALL]) + DONE
    _, _, [([call, _], _)] = await shown(first, stream_of("Ann."))
    assert call.content == "Well. "


SQL = {"id": "call_3", "type": "custom", "custom": {"name": "sql", "input": "select * from t"}}
SQL_IN_PIECES = [
    {"index": 1, "id": "call_3", "type": "custom", "custom": {"name": "sql", "input": ""}},
    {"index": 1, "custom": {"input": "select * "}},
    {"index": 1, "custom": {"input": "from t"}},
]


async def test_a_custom_tool_of_the_clients_is_called_beside_ours():
    pieces = b"".join(delta(tool_calls=[piece]) for piece in SQL_IN_PIECES)
    seen, done, _ = await shown(ROLE + delta(tool_calls=[{"index": 0, **RECALL}]) + pieces + FINISH + DONE)
    assert done == [("memory_recall", "{}")]
    assert transcript(seen).tool_calls == [SQL]
    seen, done, _ = await shown(whole({"tool_calls": [RECALL, SQL]}, "tool_calls"), headers=JSON)
    assert done == [("memory_recall", "{}")]
    assert json.loads(seen)["choices"][0]["message"]["tool_calls"] == [SQL]


async def test_custom_tools_that_share_an_index_are_told_apart():
    second = {"index": 1, **SQL, "id": "call_4"}
    pieces = b"".join(delta(tool_calls=[piece]) for piece in [*SQL_IN_PIECES, second])
    seen, _, _ = await shown(ROLE + delta(tool_calls=[{"index": 0, **RECALL}]) + pieces + FINISH + DONE)
    assert transcript(seen).tool_calls == [SQL, {**SQL, "id": "call_4"}]
    assert transcript(ROLE + pieces).tool_calls == [SQL, {**SQL, "id": "call_4"}]


async def test_a_custom_tool_of_the_clients_may_have_the_name_of_ours():
    given = {"tools": msgspec.Raw(b'[{"type": "custom", "custom": {"name": "memory_recall"}}]')}
    offer = offer_tools(given, ["memory_recall", "memory_store"])
    assert offer.names == {"memory_store"}


async def test_a_custom_tool_in_a_later_round_is_the_clients():
    first = ROLE + delta(tool_calls=[RECALL]) + FINISH + DONE
    pieces = b"".join(delta(tool_calls=[piece]) for piece in SQL_IN_PIECES)
    seen, done, asked = await shown(first, ROLE + pieces + FINISH + DONE)
    assert (transcript(seen).tool_calls, len(done), len(asked)) == ([SQL], 1, 1)


# --- what upstreams get wrong

ERROR = event(error={"message": "Overloaded.", "code": 529})


async def test_an_error_in_the_midst_of_a_call_is_an_error():
    broken = ROLE + delta(tool_calls=[{**RECALL, "function": {"name": "memory_store", "arguments": '{"t'}}])
    for end in (b"", DONE):
        seen, done, asked = await shown(broken + ERROR + end)
        assert (seen, done, asked) == (ROLE + ERROR + end, [], [])


async def test_an_error_in_the_midst_of_the_clients_own_call_passes_as_it_came():
    body = ROLE + delta(tool_calls=[WEATHER]) + ERROR
    assert (await shown(body))[0] == body


async def test_an_error_under_the_status_200_is_no_answer_in_a_later_round_either():
    error = json.dumps({"error": {"message": "Overloaded.", "code": 529}}).encode()
    seen, _, asked = await shown(whole({"content": "Well, ", "tool_calls": [RECALL]}), error, headers=JSON)
    assert (seen, len(asked)) == (error, 1)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ({"arguments": {"query": "name"}}, '{"query":"name"}'),
        ({"arguments": {}}, ""),
        ({"arguments": None}, ""),
        ({}, ""),
    ],
    ids=["an object", "an empty object", "null", "nothing"],
)
async def test_arguments_in_other_forms_are_read(function, arguments):
    call = {"id": "call_1", "function": {"name": "memory_recall", **function}}
    _, done, _ = await shown(ROLE + delta(tool_calls=[call]) + FINISH + DONE, stream_of("Ann."))
    assert done == [("memory_recall", arguments)]
    _, done, [([told, _], _)] = await shown(
        whole({"tool_calls": [call]}), whole({"content": "Ann."}), headers=JSON
    )
    assert done == [("memory_recall", arguments)]
    assert told.tool_calls == [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "memory_recall", "arguments": arguments or "{}"},
        }
    ]


@pytest.mark.parametrize("given", [{}, {"id": ""}, {"id": None}])
async def test_calls_without_an_id_get_one_each(given):
    calls = [{"function": RECALL["function"], **given} for _ in range(2)]
    streamed = ROLE + delta(tool_calls=calls) + FINISH + DONE
    for first, last, headers in [
        (streamed, stream_of("Ann."), SSE),
        (whole({"tool_calls": calls}), whole({"content": "Ann."}), JSON),
    ]:
        _, _, [([called, *told], _)] = await shown(first, last, headers=headers)
        ids = [call["id"] for call in called.tool_calls]
        assert ids == [result.tool_call_id for result in told]
        assert len({*ids, ""}) == 3


@pytest.mark.parametrize(
    "calls",
    [7, "memory_recall", {"memory_recall": {}}, [7, None], [{"function": {"name": ["memory_recall"]}}]],
)
async def test_what_is_no_call_is_the_clients(calls):
    body = ROLE + delta(tool_calls=calls, content="Hi") + DONE
    assert transcript((await shown(body))[0]).text == "Hi"
    body = whole({"content": "Hi", "tool_calls": calls})
    assert (await shown(body, headers=JSON))[0] == body


# --- whatever else an upstream sends

WORDS = ["", "Hi", "memory_store", "weather", "stop", "tool_calls", "assistant", "{}"]
GONE = st.just("gone")
NAMES = ["id", "index", "function", "name", "arguments", "content", "type"]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=4,
)


def object_of(**members):
    """An object with these members, of which one may be anything, or missing."""
    odd = st.sampled_from(["", *members]).flatmap(lambda name: st.fixed_dictionaries({name: ANYTHING | GONE}))
    whole = st.tuples(st.fixed_dictionaries(members), odd).map(lambda pair: pair[0] | pair[1])
    return whole.map(lambda given: {name: value for name, value in given.items() if name and value != "gone"})


FUNCTION = object_of(name=st.sampled_from(["memory_store", "weather"]), arguments=st.sampled_from(["{", "}"]))
CALL = object_of(index=st.integers(0, 1), id=st.sampled_from("ab"), function=FUNCTION)
CALLS = st.lists(CALL, min_size=1, max_size=3)
SAID = object_of(role=st.just("assistant"), content=st.just("Hi"), tool_calls=CALLS)
CHOICE = object_of(delta=SAID, message=SAID, finish_reason=st.just("stop"))
CHUNK = object_of(
    id=st.just("c"),
    choices=st.lists(CHOICE, min_size=1, max_size=2),
    usage=st.just({"n": 1}),
    error=st.none(),
)
BODY = CHUNK.map(lambda chunk: json.dumps(chunk).encode())
EVENT = BODY.map(lambda body: b"data: " + body + b"\n\n") | st.sampled_from([DONE, b": hm\n\n"])
STREAM = st.lists(EVENT, max_size=4).map(b"".join)


@settings(max_examples=50)
@given(st.lists(STREAM, min_size=4, max_size=4), st.sampled_from([1, 9, 10_000]))
def test_whatever_is_streamed_is_an_answer(bodies, size):
    answered(*bodies, size=size)


@settings(max_examples=50)
@given(st.lists(BODY, min_size=4, max_size=4))
def test_whatever_a_whole_answer_holds_it_is_one(bodies):
    answered(*bodies, headers=JSON)


def answered(*bodies, **how):
    """There is an answer, unless ours were called to the last and nothing was said."""
    try:
        _, done, asked = asyncio.run(shown(*bodies, most=2, **how))
    except UpstreamBroken:
        assert b"memory_store" in bodies[3]
    else:
        assert len(done) >= len(asked)
