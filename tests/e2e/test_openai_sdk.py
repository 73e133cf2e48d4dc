"""The official OpenAI client for Python against a running proxy."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.conftest import AGORA
from tests.peers.fake_upstream import (
    HANG,
    HEAD,
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

MESSAGES: Any = [{"role": "user", "content": "Hi"}]
TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture
def client(agora: ProxyServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=agora.url, api_key="any", max_retries=0) as client:
        yield client


def test_a_whole_answer(client: openai.OpenAI) -> None:
    got = client.chat.completions.create(model="fake", messages=MESSAGES)
    assert got.choices[0].message.content == "Hello there."
    assert got.usage and got.usage.total_tokens == 7
    assert got._request_id and got._request_id.startswith("req_")


def test_a_stream_with_usage(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(model="m", messages=MESSAGES, stream=True, stream_options=options)
    )
    assert (
        "".join(piece.choices[0].delta.content or "" for piece in chunks if piece.choices) == "Hello there."
    )
    assert chunks[-1].usage and chunks[-1].usage.prompt_tokens == 5


def test_the_streaming_helper_puts_the_answer_together(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="m", messages=MESSAGES) as stream:
        assert stream.get_final_completion().choices[0].message.content == "Hello there."


def test_tools_there_and_back(client: openai.OpenAI, upstream: FakeUpstream) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    upstream.says(
        *sse(
            ROLE + delta(tool_calls=[{"index": 0, **call}]) + delta(finish="tool_calls") + b"data: [DONE]\n\n"
        )
    )
    with client.chat.completions.stream(model="m", messages=MESSAGES, tools=[TOOL]) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.tool_calls and message.tool_calls[0].function.name == "weather"
    result: Any = {"role": "tool", "tool_call_id": "call_1", "content": "Mild."}
    upstream.says(*answer(completion("It is mild.")))
    history: Any = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]}, result]
    client.chat.completions.create(
        model="m", messages=history, tools=[TOOL], tool_choice="auto", parallel_tool_calls=False
    )
    assert upstream.last.json["messages"] == history
    assert upstream.last.json["tools"] == [TOOL]
    assert upstream.last.json["parallel_tool_calls"] is False


def test_structured_output(client: openai.OpenAI, upstream: FakeUpstream) -> None:
    class Joke(BaseModel):
        line: str

    upstream.says(*answer(completion('{"line": "A scarecrow."}')))
    got = client.chat.completions.parse(model="m", messages=MESSAGES, response_format=Joke)
    assert got.choices[0].message.parsed == Joke(line="A scarecrow.")
    assert upstream.last.json["response_format"]["json_schema"]["name"] == "Joke"


def test_a_raw_response(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES)
    assert raw.headers["x-request-id"]
    assert raw.parse().choices[0].message.content == "Hello there."


def test_every_field_of_a_request_goes_through(client: openai.OpenAI, upstream: FakeUpstream) -> None:
    fields: dict[str, Any] = {
        "audio": {"format": "wav", "voice": "ash"}, "frequency_penalty": 0.5, "logit_bias": {"50256": -100},
        "logprobs": True, "max_completion_tokens": 5, "modalities": ["text", "audio"], "n": 2, "seed": 7,
        "prediction": {"type": "content", "content": "x"}, "presence_penalty": -0.5, "prompt_cache_key": "k",
        "reasoning_effort": "low", "response_format": {"type": "json_object"}, "safety_identifier": "s",
        "service_tier": "auto", "stop": ["a"], "store": True, "metadata": {"a": "b"}, "temperature": 0.1,
        "top_logprobs": 3, "top_p": 1.0, "user": "u", "verbosity": "low", "web_search_options": {},
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    client.chat.completions.create(model="m", messages=MESSAGES, **fields)
    assert upstream.last.json == {"model": "m", "messages": MESSAGES, **fields}


def test_parts_and_roles_go_through(client: openai.OpenAI, upstream: FakeUpstream) -> None:
    messages: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
        {"role": "user", "name": "ann", "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        ]},
        {"role": "assistant", "audio": {"id": "audio_1"}},
        {"role": "user", "content": "And now?"},
    ]  # fmt: skip
    client.chat.completions.create(model="m", messages=messages)
    assert upstream.last.json["messages"] == messages


ERRORS = [
    (400, openai.BadRequestError),
    (401, openai.AuthenticationError),
    (403, openai.PermissionDeniedError),
    (404, openai.NotFoundError),
    (409, openai.ConflictError),
    (422, openai.UnprocessableEntityError),
    (429, openai.RateLimitError),
    (503, openai.InternalServerError),
]


@pytest.mark.parametrize(("status", "kind"), ERRORS)
@pytest.mark.parametrize("stream", [True, False])
def test_errors_are_the_clients_own(
    client: openai.OpenAI,
    upstream: FakeUpstream,
    status: int,
    kind: type[openai.APIStatusError],
    stream: bool,
) -> None:
    upstream.says(*answer({"error": {"message": "No.", "type": "t", "param": "p", "code": "c"}}, status))
    with pytest.raises(kind) as raised:
        client.chat.completions.create(model="m", messages=MESSAGES, stream=stream)
    assert (raised.value.code, raised.value.param, raised.value.type) == ("c", "p", "t")


RESPONSES = "the Responses API is not served. Let the client use chat completions, at /v1/chat/completions."
ELSEWHERE = "chat completions alone are served, at /v1/chat/completions. Ask the model's vendor for the rest."


@pytest.mark.parametrize(
    ("ask", "path", "advice"),
    [
        (lambda c: c.responses.create(model="m", input="Hi"), "responses", RESPONSES),
        (lambda c: c.responses.create(model="m", input="Hi", stream=True), "responses", RESPONSES),
        (lambda c: c.embeddings.create(model="m", input="Hi"), "embeddings", ELSEWHERE),
        (lambda c: c.audio.speech.create(model="m", voice="alloy", input="Hi"), "audio/speech", ELSEWHERE),
        (lambda c: c.images.generate(model="m", prompt="Hi"), "images/generations", ELSEWHERE),
    ],
)
def test_what_is_not_served_says_what_to_do(
    client: openai.OpenAI, ask: Callable[[openai.OpenAI], Any], path: str, advice: str
) -> None:
    """Frameworks that ask for it by default call a 404 "model not found": our words are all that helps."""
    with pytest.raises(openai.NotFoundError, match="There is nothing at") as caught:
        ask(client)
    assert caught.value.message.endswith(f"/v1/{path}: {advice}")


def test_a_completion_that_is_posted_to_the_root_is_told_where_they_are(agora: ProxyServer) -> None:
    got = agora.client.post("/", json={"model": "m", "messages": MESSAGES})
    assert (got.status_code, got.headers["allow"]) == (405, "HEAD, GET")
    assert got.json()["error"]["message"] == "/ takes HEAD, GET; completions are at /v1/chat/completions."


def test_two_slashes_are_answered_in_json(agora: ProxyServer) -> None:
    """As where a base URL ends in a slash, and the client puts another before the path."""
    base = f"{agora.url.removesuffix('/v1')}//v1"
    with (
        openai.OpenAI(base_url=base, api_key="any", max_retries=0) as client,
        pytest.raises(openai.NotFoundError, match="There is nothing at //v1/chat/completions"),
    ):
        client.chat.completions.create(model="m", messages=MESSAGES)


@pytest.mark.parametrize("tail", ["/v1", "/chat/completions"])
def test_a_base_url_with_too_much_in_it_is_told_how_it_ends(agora: ProxyServer, tail: str) -> None:
    told = "a base URL ends in /v1, and clients add /chat/completions"
    with (
        openai.OpenAI(base_url=agora.url + tail, api_key="any", max_retries=0) as client,
        pytest.raises(openai.NotFoundError, match=told),
    ):
        client.chat.completions.create(model="m", messages=MESSAGES)


def test_a_stream_that_breaks_is_an_error(client: openai.OpenAI, upstream: FakeUpstream) -> None:
    upstream.says(HEAD, chunk(ROLE + delta(content="half")), 0.02, "reset")
    with pytest.raises(openai.APIError, match="broke off"):
        list(client.chat.completions.create(model="m", messages=MESSAGES, stream=True))


def test_a_clients_time_out_reaches_the_model(client: openai.OpenAI, upstream: FakeUpstream) -> None:
    upstream.says(HANG)
    with pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(model="m", messages=MESSAGES, timeout=2)
    assert upstream.last.closed.wait(10)


def test_retries_are_the_clients_to_make(agora: ProxyServer, upstream: FakeUpstream) -> None:
    scripts = [
        answer({"error": {"message": "Busy"}}, 503, "retry-after-ms: 1\r\n"),
        answer(completion("Now.")),
    ]
    upstream.script = lambda _: scripts.pop(0)
    with openai.OpenAI(base_url=agora.url, api_key="any", max_retries=2) as client:
        got = client.chat.completions.create(model="m", messages=MESSAGES)
    assert got.choices[0].message.content == "Now."


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").id == "fake"


def test_asynchronous_calls_side_by_side_and_cancelled(agora: ProxyServer, upstream: FakeUpstream) -> None:
    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=agora.url, api_key="any", max_retries=0) as client:

            async def say(word: str) -> str:
                stream = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": word}], stream=True
                )
                return "".join(
                    [piece.choices[0].delta.content or "" async for piece in stream if piece.choices]
                )

            upstream.script = lambda got: sse(stream_of(got.json["messages"][0]["content"]))
            words = [f"word {i}" for i in range(50)]
            assert await asyncio.gather(*map(say, words)) == words
            upstream.says(HANG)
            waiting = asyncio.create_task(say("never"))
            async with asyncio.timeout(10):
                while b"never" not in upstream.last.body:  # noqa: ASYNC110 - it is another thread that is asked
                    await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(run())
    assert upstream.last.closed.wait(10)
    assert json.loads(upstream.last.body)["messages"][0]["content"] == "never"


def test_leaving_a_stream_early_reaches_the_model(client: openai.OpenAI, upstream: FakeUpstream) -> None:
    upstream.says(HEAD, chunk(ROLE + delta(content="x")), HANG)
    with client.chat.completions.create(model="m", messages=MESSAGES, stream=True) as stream:
        next(iter(stream))
    assert upstream.last.closed.wait(10)


class Route(BaseModel):
    origin: str
    stops: list[str]
    kilometres: float


@pytest.mark.parametrize("stream", [True, False])
def test_the_practice_model_keeps_to_a_format_and_calls_what_it_has_to(serve: Serve, *, stream: bool) -> None:
    practice = serve(AGORA, UPSTREAM_BASE_URL="practice:")
    tools: Any = [openai.pydantic_function_tool(Route)]
    forced: Any = {"type": "function", "function": {"name": "Route"}}
    who: Any = {"session_id": "s1"}  # with memory, and the steps that go with it
    with openai.OpenAI(base_url=practice.url, api_key="any", max_retries=0) as client:
        ways: list[Any] = [{"response_format": Route}, {"tools": tools, "tool_choice": forced}]
        messages = []
        for way in ways:
            if stream:
                with client.chat.completions.stream(
                    model="m", messages=MESSAGES, extra_body=who, **way
                ) as events:
                    completion = events.get_final_completion()
            else:
                completion = client.chat.completions.parse(
                    model="m", messages=MESSAGES, extra_body=who, **way
                )
            messages.append(completion.choices[0].message)
    assert messages[0].parsed == Route(origin="", stops=[], kilometres=0)
    [call] = messages[1].tool_calls or []
    assert call.function.parsed_arguments == Route(origin="", stops=[], kilometres=0)
