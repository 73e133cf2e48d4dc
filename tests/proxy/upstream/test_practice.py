import asyncio
import json
import re
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Model, chat
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming

from proxy.errors import UpstreamTimeout
from proxy.upstream.practice import IN_MESSAGES, TOP_LEVEL, PracticeModel

HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "text", "function", "name", "include_usage"]), inner)
    ),
    max_leaves=8,
)
fields = ["model", "n", "tools", "stream_options", "stream", "max_tokens", "x"]


@asynccontextmanager
async def opened(body, method="POST", path="/chat/completions", pause=0.0, due_in=5.0):
    practice = PracticeModel(pause=pause)
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    due = asyncio.get_running_loop().time() + due_in
    answer = await practice.open(method, path, [], sent, due=due)
    try:
        yield answer
    finally:
        answer.close()
        await practice.aclose()


async def pieces_of(answer):
    pieces = []
    while piece := await answer.read():
        pieces.append(piece)
    return pieces


async def _asked(body, **ways):
    async with opened(body, **ways) as answer:
        pieces = await pieces_of(answer)
        assert len(asyncio.all_tasks()) == 1
        return answer.status, dict(answer.headers), pieces


def ask(body=None, **ways):
    return asyncio.run(_asked({"model": "m", "messages": HELLO} if body is None else body, **ways))


def events_of(pieces):
    events = b"".join(pieces).split(b"\n\n")
    assert events.pop() == b""
    assert all(event.startswith(b"data: ") and b"\n" not in event for event in events)
    return [event.removeprefix(b"data: ") for event in events]


def streamed(**request):
    status, headers, pieces = ask({"model": "m", "messages": HELLO, "stream": True, **request})
    assert status == 200
    assert headers[b"content-type"].startswith(b"text/event-stream")
    *chunks, done = events_of(pieces)
    assert done == b"[DONE]"
    return [ChatCompletionChunk.model_validate(json.loads(chunk), strict=True) for chunk in chunks]


def completed(**request):
    status, headers, pieces = ask({"model": "m", "messages": HELLO, **request})
    assert status == 200
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"content-length"] == str(len(b"".join(pieces))).encode()
    return ChatCompletion.model_validate_json(b"".join(pieces))


def answer_to(messages, **request):
    return completed(messages=messages, **request).choices[0].message.content


def said_in(chunks, index=0):
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def test_a_stream_runs_from_the_role_to_the_finish():
    chunks = streamed()
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant"] + [None] * (len(chunks) - 1)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert len(chunks) > 8


def test_a_stream_has_one_id_one_time_and_the_model_that_was_asked():
    chunks = streamed(model="gpt-of-mine")
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert chunks[0].model == "gpt-of-mine"
    assert chunks[0].id != streamed()[0].id


def test_a_stream_and_a_whole_answer_say_the_same():
    assert said_in(streamed()) == completed().choices[0].message.content


def test_every_piece_is_whole_events():
    _, _, pieces = ask({"model": "m", "messages": HELLO, "stream": True, "n": 2})
    assert all(piece.startswith(b"data: ") and piece.endswith(b"\n\n") for piece in pieces)


def test_usage_comes_last_and_only_when_asked_for():
    assert all(chunk.usage is None for chunk in streamed())
    *chunks, last = streamed(stream_options={"include_usage": True})
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert last.usage.total_tokens == last.usage.prompt_tokens + last.usage.completion_tokens
    assert last.usage.completion_tokens == pytest.approx(len(said_in(chunks)) / 4, abs=2)


def test_longer_prompts_cost_more():
    long = [{"role": "user", "content": "word " * 400}]
    assert completed(messages=long).usage.prompt_tokens == pytest.approx(500, abs=2)
    assert completed().usage.prompt_tokens < 10


@pytest.mark.parametrize(
    ("n", "choices"), [(None, 1), (1, 1), (3, 3), (8, 8), (9, 8), (0, 1), (-1, 1), ("2", 1)]
)
def test_as_many_choices_come_as_asked_up_to_eight(n, choices):
    whole = completed(n=n)
    assert [choice.index for choice in whole.choices] == list(range(choices))
    chunks = streamed(n=n)
    assert {said_in(chunks, index) for index in range(choices)} == {whole.choices[0].message.content}
    assert {choice.index for chunk in chunks for choice in chunk.choices} == set(range(choices))


def test_it_tells_what_it_was_shown():
    lines = answer_to(
        [*HELLO, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Bye"}]
    )
    assert lines.splitlines() == [
        "This is the practice model. I was shown 4 messages.",
        'system: "Be brief."',
        'user: "Hi"',
        'assistant: "Hello!"',
        'user: "Bye"',
        "To talk to a real model, set UPSTREAM_BASE_URL.",
    ]


def test_a_speakers_name_is_told():
    assert 'user Ann: "Hi"' in answer_to([{"role": "user", "name": "Ann", "content": "Hi"}])


def test_a_long_message_is_cut_in_the_middle_between_words():
    line = answer_to([{"role": "user", "content": "begin " + "word " * 20_000 + "end"}]).splitlines()[1]
    assert line.startswith('user: "begin word word')
    assert line.endswith('word word end"')
    assert "word … word" in line


def test_a_long_word_is_cut_in_its_middle():
    line = answer_to([{"role": "user", "content": "x" * 100_000}]).splitlines()[1]
    assert re.fullmatch('user: "x+ … x+"', line)
    assert len(line) < 450


def test_of_many_messages_the_ends_are_told():
    lines = answer_to([{"role": "user", "content": f"number {i}"} for i in range(40)]).splitlines()
    assert lines[0].endswith("40 messages.")
    assert lines[3:6] == ['user: "number 2"', "(28 more messages here)", 'user: "number 31"']
    assert lines[-2] == 'user: "number 39"'
    assert "more" not in answer_to([{"role": "user", "content": "x"}] * 12)


def test_what_is_no_text_is_named():
    parts = [
        {"type": "text", "text": "Look:"},
        {"type": "image_url", "image_url": {"url": "data:..."}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {}},
        {"type": 7},
        "odd",
    ]
    line = answer_to([{"role": "user", "content": parts}]).splitlines()[1]
    assert line == 'user: "Look: [image] [audio] [file] [something] [something]"'
    assert "user: [nothing]" in answer_to([{"role": "user", "content": None}])


def test_tools_and_tool_calls_are_named():
    calls = [{"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]
    tools = [{"type": "function", "function": {"name": name}} for name in ("weather", "memory_store")]
    messages = [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]
    text = answer_to(messages, tools=tools)
    assert "assistant: [calls weather]\n" in text
    assert 'tool: "sunny"' in text
    assert "I could call weather, memory_store." in text


WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1},
        "note": {"type": "string"},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}
INSTANCE = {"city": "", "unit": "celsius", "days": 1}
TOOLS = [
    {"type": "function", "function": {"name": "time"}},
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "custom", "custom": {"name": "shell"}},
]


def named(name):
    return {"type": "function", "function": {"name": name}}


def allowed(mode, *names):
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(n) for n in names]}}


def calls_in(chunks):
    """The calls of a stream, put together as OpenAI's clients do."""
    calls = {}
    for delta in (chunk.choices[0].delta for chunk in chunks if chunk.choices):
        for piece in delta.tool_calls or ():
            call = calls.setdefault(piece.index, {"id": piece.id, "name": "", "arguments": ""})
            call["name"] += piece.function.name or ""
            call["arguments"] += piece.function.arguments or ""
    return [calls[index] for index in sorted(calls)]


@pytest.mark.parametrize(
    ("choice", "name", "arguments"),
    [
        (named("weather"), "weather", INSTANCE),
        (named("time"), "time", {}),
        ("required", "time", {}),
        (allowed("required", "weather"), "weather", INSTANCE),
    ],
)
def test_a_function_that_has_to_be_called_is_called_with_the_least_that_it_takes(choice, name, arguments):
    choices = completed(tools=TOOLS, tool_choice=choice).choices
    assert (choices[0].finish_reason, choices[0].message.content) == ("tool_calls", None)
    [call] = choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (name, arguments)

    chunks = streamed(tools=TOOLS, tool_choice=choice)
    assert [chunk.choices[0].finish_reason for chunk in chunks][-2:] == [None, "tool_calls"]
    assert said_in(chunks) == ""
    [streamed_call] = calls_in(chunks)
    assert streamed_call["id"].startswith("call_")
    assert (streamed_call["name"], json.loads(streamed_call["arguments"])) == (name, arguments)


@pytest.mark.parametrize("choice", ["auto", "none", None, allowed("auto", "weather"), 7, {}])
def test_where_no_call_is_required_none_is_made(choice):
    assert "I could call time, weather" in answer_to(HELLO, tools=TOOLS, tool_choice=choice)


def test_a_custom_tool_is_called_as_one():
    choice = {"type": "custom", "custom": {"name": "shell"}}
    [call] = completed(tools=TOOLS, tool_choice=choice).choices[0].message.tool_calls
    assert (call.type, call.custom.name, call.custom.input) == ("custom", "shell", "")


def test_a_function_is_called_in_the_form_before_tools_too():
    functions = [tool["function"] for tool in TOOLS[:2]]
    request = {"functions": functions, "function_call": {"name": "weather"}}
    choice = completed(**request).choices[0]
    assert (choice.finish_reason, choice.message.function_call.name) == ("function_call", "weather")
    assert json.loads(choice.message.function_call.arguments) == INSTANCE
    deltas = [chunk.choices[0].delta.function_call for chunk in streamed(**request)]
    assert json.loads("".join(delta.arguments or "" for delta in deltas if delta)) == INSTANCE


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": named("nothing")}, "tool_choice"),
        ({"functions": [], "function_call": {"name": "f"}}, "function_call"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}},
            "response_format",
        ),
    ],
)
def test_what_cannot_be_called_or_written_gets_400(request_, param):
    status, _, pieces = ask({"model": "m", "messages": HELLO, **request_})
    assert (status, json.loads(b"".join(pieces))["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("response_format", "instance"),
    [
        ({"type": "json_object"}, {}),
        ({"type": "json_schema", "json_schema": {"name": "w", "strict": True, "schema": WEATHER}}, INSTANCE),
        ({"type": "json_schema", "json_schema": {"name": "w"}}, {}),
    ],
)
def test_a_format_that_is_asked_for_is_kept(response_format, instance):
    choice = completed(response_format=response_format).choices[0]
    assert (choice.finish_reason, json.loads(choice.message.content)) == ("stop", instance)
    assert json.loads(said_in(streamed(response_format=response_format))) == instance


def test_text_is_a_format_too():
    assert answer_to(HELLO, response_format={"type": "text"}) == answer_to(HELLO)


def test_fields_that_a_strict_model_refuses_are_told():
    text = answer_to([{"role": "user", "content": "Hi", "turn_id": 1, "metadata": {}}], interruptable=True)
    assert "refuse these fields of the request: interruptable." in text
    assert "refuse these fields of messages: metadata, turn_id." in text
    assert "refuse" not in answer_to(HELLO, temperature=0.5, tools=[], user="u", stream_options=None)


def test_every_field_that_openai_knows_is_known():
    assert CompletionCreateParamsStreaming.__annotations__.keys() <= TOP_LEVEL
    kinds = [getattr(chat, name) for name in dir(chat) if name.endswith("MessageParam")]
    fields = {field for kind in kinds for field in getattr(kind, "__annotations__", ())}
    assert fields <= IN_MESSAGES


def test_what_a_terminal_would_act_on_is_not_repeated():
    line = answer_to([{"role": "user\x1b[2J", "content": "a\x1b[31mb\r\nc\x00\x9b"}]).splitlines()[1]
    assert line == 'user [2J: "a [31mb c"'


@pytest.mark.parametrize(
    "text", ['"', "\\", "\n\ndata: [DONE]\n\n", "🙂", "한국어", "</script>", "\u2028", "{0}%s"]
)
def test_any_text_arrives_as_it_is(text):
    assert " ".join(text.split()) in said_in(streamed(messages=[{"role": "user", "content": text}]))


message = st.fixed_dictionaries(
    {"role": st.text()},
    optional={"content": values, "name": values, "tool_calls": values, "others": values},
)


@settings(max_examples=50, deadline=None)
@given(st.lists(message, min_size=1, max_size=16), st.dictionaries(st.sampled_from(fields), values))
def test_any_request_with_messages_is_answered(messages, request):
    assert said_in(streamed(**request | {"messages": messages, "stream": True})) == answer_to(
        **request | {"messages": messages, "stream": False}
    )


@pytest.mark.parametrize(
    "body",
    [
        *(
            b"",
            b"{",
            b"\xff",
            b"[]",
            b"null",
            b"{}",
            b"NaN",
            b"[" * 100_000,
            b'{"messages": {"role": "user"}}',
        ),
        *(
            b'{"messages": []}',
            b'{"messages": ["hi"]}',
            b'{"messages": [{"content": "hi"}]}',
            b'{"messages": [[]]}',
        ),
    ],
    ids=lambda body: repr(body[:40]),
)
def test_what_is_no_request_gets_400_in_openais_shape(body):
    status, headers, pieces = ask(body)
    error = json.loads(b"".join(pieces))["error"]
    assert status == 400
    assert headers[b"content-type"] == b"application/json"
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"


def test_it_lists_itself():
    status, _, pieces = ask(b"", method="GET", path="/models")
    listed = json.loads(b"".join(pieces))
    assert status == 200
    assert [Model.model_validate(model).id for model in listed["data"]] == ["practice"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/chat/completions?x=1", 200),
        ("GET", "/chat/completions", 405),
        ("POST", "/models", 405),
        ("POST", "/embeddings", 404),
    ],
)
def test_a_path_is_answered_as_http_has_it(method, path, status):
    assert ask(method=method, path=path)[0] == status


def run(test):
    return asyncio.run(asyncio.wait_for(test, 5))


STREAM = {"model": "m", "messages": HELLO, "stream": True}


def test_the_first_piece_comes_at_once_and_the_rest_paced():
    async def timed():
        now = asyncio.get_running_loop().time
        async with opened(STREAM, pause=0.5) as answer:
            times = [now()]
            for _ in range(3):
                await answer.read()
                times.append(now())
        return [after - before for before, after in pairwise(times)]

    first, *others = run(timed())
    assert first < 0.4
    assert all(0.45 < other < 3 for other in others)


def test_closing_ends_a_read_that_waits():
    async def closed():
        async with opened(STREAM, pause=60, due_in=120) as answer:
            await answer.read()
            waiting = asyncio.create_task(answer.read())
            await asyncio.sleep(0.01)
            answer.close()
            answer.close()
            return await waiting, await answer.read()

    assert run(closed()) == (b"", b"")


def test_a_read_that_is_cancelled_leaves_nothing_behind():
    async def cancelled():
        async with opened(STREAM, pause=60, due_in=120) as answer:
            await answer.read()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(answer.read(), 0.01)
            assert len(asyncio.all_tasks()) == 2

    run(cancelled())


def test_a_piece_that_would_be_too_late_is_a_timeout():
    async def late():
        async with opened(STREAM, pause=60, due_in=120) as answer:
            await answer.read()
            answer.due(asyncio.get_running_loop().time() + 0.02)
            with pytest.raises(UpstreamTimeout):
                await answer.read()
        async with opened(STREAM, due_in=-1) as answer:
            with pytest.raises(UpstreamTimeout):
                await answer.read()

    run(late())


def test_a_new_due_time_counts_from_then_on():
    async def extended():
        async with opened(STREAM, pause=0.01, due_in=-1) as answer:
            answer.due(asyncio.get_running_loop().time() + 5)
            return await pieces_of(answer)

    assert run(extended())[-1] == b"data: [DONE]\n\n"


def test_what_has_all_arrived_is_not_late():
    async def ended():
        async with opened({"messages": HELLO}) as answer:
            await answer.read()
            answer.due(0)
            return await answer.read()

    assert run(ended()) == b""
