"""The main job from outside: a real server, a real client, a fake upstream that remembers."""

import json
import time
import zlib

import httpx2
import pytest

from tests.peers.fake_upstream import (
    CLOSE,
    DONE,
    END,
    HANG,
    HEAD,
    RESET,
    ROLE,
    USAGE,
    FakeUpstream,
    answer,
    chunk,
    completion,
    delta,
    event,
    sse,
    stream_of,
)
from tests.proxy_server import CONFIG, ProxyServer, Serve

TWO_PIPELINES = """
upstreams:
  main: {base_url: "${UPSTREAM_BASE_URL}", model: large}
  other: {base_url: "${UPSTREAM_BASE_URL}", model: small}
pipelines:
  default: {upstreams: [main]}
  quick: {upstreams: [other]}
"""
PATHS = ["/chat/completions", "/v1/chat/completions", "/pipelines/default/v1/chat/completions"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_comes_back_byte_for_byte(
    proxy: ProxyServer, upstream: FakeUpstream, path: str, stream: bool
) -> None:
    body = stream_of("Hello", " wörld 🎙") if stream else json.dumps(completion("wörld 🎙"), indent=3).encode()
    upstream.says(*(sse(body) if stream else answer(body)))
    got = proxy.chat(path=path, stream=stream)
    assert got.status_code == 200
    assert got.content == body
    assert upstream.last.path == "/v1/chat/completions"
    assert upstream.last.json == {
        "model": "fake",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": stream,
    }


def test_a_stream_says_that_nobody_may_buffer_it(proxy: ProxyServer) -> None:
    got = proxy.chat(stream=True)
    assert got.headers["x-accel-buffering"] == "no"
    assert got.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert got.headers["x-ratelimit-remaining-requests"] == "99"
    assert "set-cookie" not in got.headers


def test_every_answer_carries_its_request_id_and_timing(proxy: ProxyServer) -> None:
    got = proxy.chat(stream=True, headers={"X-Request-Id": "mine-1"})
    assert got.headers["x-request-id"] == "mine-1"
    stages = [stage.split(";")[0] for stage in got.headers["server-timing"].split(", ")]
    assert stages == ["recall", "filters", "upstream"]
    assert proxy.chat().headers["x-request-id"].startswith("req_")
    assert proxy.client.get("/nowhere").headers["x-request-id"].startswith("req_")
    hostile = proxy.chat(headers={"X-Request-Id": "a b"})
    assert hostile.headers["x-request-id"].startswith("req_")


GOLDEN = {
    "lf": stream_of("Hé", "llo") + b": a comment\n\n",
    "crlf": stream_of("Hé", "llo").replace(b"\n", b"\r\n"),
    "cr": stream_of("Hé", "llo").replace(b"\n", b"\r"),
    "unterminated": ROLE + delta(content="x") + b"data: [DONE]",
    "comment first": b": hello\n\n" + stream_of("x"),
    "named events": b"event: message\nid: 7\n" + delta(content="x") + DONE,
    "tool call": ROLE
    + delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}])
    + DONE,
    "no json": b"data: hello\n\n" + delta(content="x") + DONE,
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_stream_survives_being_cut_at_any_byte(
    proxy: ProxyServer, upstream: FakeUpstream, name: str
) -> None:
    body = GOLDEN[name]
    step = 1 if name == "lf" else 7
    for cut in range(1, len(body), step):
        upstream.says(HEAD, chunk(body[:cut]), 0.0005, chunk(body[cut:]), END)
        assert proxy.chat(stream=True).content == body, f"cut at {cut}"


def test_a_stream_of_single_bytes_arrives_whole(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    body = stream_of("one", "two")
    upstream.says(HEAD, *(chunk(bytes([byte])) for byte in body), END)
    assert proxy.chat(stream=True).content == body


def test_the_first_delta_is_not_kept_waiting(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    upstream.says(HEAD, chunk(ROLE + delta(content="first")), HANG)
    with proxy.client.stream("POST", "/v1/chat/completions", json=call(stream=True)) as got:
        assert b"first" in next(got.iter_raw())


def test_a_whole_answer_may_end_with_the_connection(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    body = json.dumps(completion()).encode()
    upstream.says(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n" + body, CLOSE
    )
    assert proxy.chat().json() == completion()


def test_a_compressed_answer_is_unpacked(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    body = stream_of("Hello")
    packer = zlib.compressobj(wbits=31)
    packed = packer.compress(body) + packer.flush()
    head = HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
    upstream.says(head, chunk(packed[:20]), chunk(packed[20:]), END)
    got = proxy.chat(stream=True)
    assert got.content == body
    assert "content-encoding" not in got.headers
    assert upstream.last.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(("encoding", "wbits"), [("gzip", 31), ("deflate", 15)])
def test_a_compressed_request_is_unpacked(
    proxy: ProxyServer, upstream: FakeUpstream, encoding: str, wbits: int
) -> None:
    packer = zlib.compressobj(wbits=wbits)
    packed = packer.compress(json.dumps(call()).encode()) + packer.flush()
    assert proxy.chat(content=packed, headers={"content-encoding": encoding}).status_code == 200
    assert upstream.last.json == call()


# Failures before the answer has begun are a status.


def call(**fields: object) -> dict[str, object]:
    return {"model": "fake", "messages": [{"role": "user", "content": "Hi"}], **fields}


def assert_error(got: httpx2.Response, status: int, says: str = "", param: str | None = None) -> None:
    assert got.status_code == status, got.text
    error = got.json()["error"]
    assert error.keys() >= {"message", "type", "param", "code"}
    assert says in error["message"]
    if param:
        assert error["param"] == param
    assert got.headers["x-request-id"]


BAD_BODIES = [
    (b"{", "not JSON", None),
    (b"", "not JSON", None),
    (b"[]", "object", None),
    (b'{"model": "m"}', "'messages' is missing", "messages"),
    (b'{"model": "m", "messages": {}}', "array", "messages"),
    (b'{"model": "m", "messages": [1]}', "object", "messages[0]"),
    (b'{"model": "m", "messages": [{"content": "x"}]}', "role", "messages[0].role"),
    (b'{"model": "m", "messages": [{"role": "user", "content": 5}]}', "string", "messages[0].content"),
    (b'{"messages": [{"role": "user", "content": "x"}]}', "UPSTREAM_MODEL", "model"),
    (b'{"model": "m", "messages": ' + b"[" * 50_000, "nested too deeply", None),
    (b'{"model": "\xff", "messages": []}', "not JSON", None),
]


@pytest.mark.parametrize(("body", "says", "param"), BAD_BODIES)
def test_a_bad_request_is_told_what_was_expected(
    proxy: ProxyServer, upstream: FakeUpstream, body: bytes, says: str, param: str | None
) -> None:
    assert_error(proxy.chat(content=body), 400, says, param)
    assert not upstream.requests


WRONG = [
    *(("model", wrong, "a string") for wrong in (5, True, ["m"], {"name": "m"}, 1.5)),
    *(("stream", wrong, "true or false") for wrong in ("yes", "true", 1, 0, [], {})),
]


@pytest.mark.parametrize(("field", "wrong", "expected"), WRONG)
def test_openais_own_fields_are_what_openai_has_them_be(
    serve: Serve, upstream: FakeUpstream, field: str, wrong: object, expected: str
) -> None:
    for proxy in (serve(), serve(UPSTREAM_MODEL="big")):
        for content in (
            json.dumps(call(**{field: wrong})),
            json.dumps(call(**{field: wrong}), indent=1, separators=(" , ", " : ")),
        ):
            for path in (*PATHS, "/v1/explain"):
                got = proxy.client.post(path, content=content)
                assert_error(got, 400, f"'{field}' must be {expected}", field)
                assert got.json()["error"]["type"] == "invalid_request_error"
    assert not upstream.requests


def test_null_is_no_model_and_no_stream(serve: Serve, upstream: FakeUpstream) -> None:
    assert_error(serve().chat(model=None), 400, "'model' is missing", "model")
    assert not upstream.requests
    assert serve(UPSTREAM_MODEL="big").chat(model=None, stream=None).status_code == 200
    assert upstream.last.json["model"] == "big"
    assert upstream.last.json.get("stream") is None


EXTENSIONS = [
    {"timestamp": "yesterday"},
    {"timestamp": 10**400},
    {"turn_id": "seven", "metadata": 5},
    {"turn_id": 1.5, "metadata": ["x"]},
    {"metadata": {"source": 5, "user": None, "interrupted": "yes", "original": []}},
    {"timestamp": None, "turn_id": None, "metadata": None},
]


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_a_bad_extension_never_costs_an_answer(
    agora: ProxyServer, upstream: FakeUpstream, extension: dict[str, object]
) -> None:
    got = agora.chat([{"role": "user", "content": "Hi", **extension}])
    assert got.status_code == 200
    assert upstream.last.json["messages"] == [{"role": "user", "content": "Hi"}]


def test_a_bad_extension_is_logged_by_name_and_not_by_value(
    agora: ProxyServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "turnkeeper")
    agora.chat([{"role": "user", "content": "Hi", "timestamp": "a secret"}])
    end = time.monotonic() + 3
    while "messages[0].timestamp" not in caplog.text and time.monotonic() < end:
        time.sleep(0.01)  # it is logged when the client has its answer
    assert "messages[0].timestamp" in caplog.text
    assert "a secret" not in caplog.text


def test_half_an_emoji_never_costs_an_answer(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    body = b'{"model": "m", "messages": [{"role": "user", "content": "Hi \\ud83d"}]}'
    assert proxy.chat(content=body).status_code == 200
    assert upstream.last.json["messages"][0]["content"].startswith("Hi ")


SMALL = """
listen: {max_body: 2KB}
upstreams: {main: {base_url: "practice:"}}
pipelines: {default: {upstreams: [main]}}
"""


def test_a_body_over_the_limit_is_413(serve: Serve) -> None:
    proxy = serve(SMALL)
    assert_error(proxy.chat([{"role": "user", "content": "x" * 3000}]), 413, "2000")
    packed = zlib.compress(json.dumps(call(user="x" * 100_000)).encode())
    assert_error(proxy.chat(content=packed, headers={"content-encoding": "deflate"}), 413, "2000")


def test_a_chunked_body_over_the_limit_is_413(serve: Serve) -> None:
    proxy = serve(SMALL)
    assert_error(proxy.chat(content=iter([b"x" * 1500] * 3)), 413, "2000")


def test_fifteen_megabytes_pass(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    text = "x" * 15_000_000
    assert proxy.chat([{"role": "user", "content": text}]).status_code == 200
    assert upstream.last.json["messages"][0]["content"] == text


def test_an_unknown_compression_is_415(proxy: ProxyServer) -> None:
    assert_error(proxy.chat(content=b"x", headers={"content-encoding": "snappy"}), 415, "gzip")
    assert_error(proxy.chat(content=b"xxx", headers={"content-encoding": "gzip"}), 400, "Content-Encoding")
    assert_error(proxy.chat(content=b"\x1f", headers={"content-encoding": "gzip"}), 400, "too early")


OPENAI_ERROR = {
    "error": {"message": "Slow down.", "type": "requests", "param": None, "code": "rate_limit_exceeded"}
}
REFUSALS = [
    (429, OPENAI_ERROR, "Slow down."),
    (
        400,
        [{"error": {"code": 400, "message": "Unknown name", "status": "INVALID_ARGUMENT"}}],
        "Unknown name",
    ),
    (422, {"object": "error", "message": {"detail": [{"type": "extra_forbidden"}]}}, "extra_forbidden"),
    (401, {"detail": "Who are you?"}, "Who are you?"),
    (503, b"<html>Unavailable</html>", "Unavailable"),
    (400, [OPENAI_ERROR], "Slow down."),
    (500, b"[" * 20_000 + b"]" * 20_000, "[[["),
    (500, b"", "500"),
]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("status", "body", "says"), REFUSALS)
def test_an_upstream_error_passes_on_with_its_status(
    proxy: ProxyServer, upstream: FakeUpstream, stream: bool, status: int, body: object, says: str
) -> None:
    upstream.says(*answer(body, status, "retry-after: 7\r\nset-cookie: x=y\r\n"))
    got = proxy.chat(stream=stream)
    assert_error(got, status, says)
    assert got.headers["retry-after"] == "7"
    assert "set-cookie" not in got.headers
    if body is OPENAI_ERROR:
        assert got.json() == OPENAI_ERROR


KEYED = CONFIG.replace("api_key:", 'headers: {x-account: "Token account-of-ours"}\n    api_key:')
QUOTING = {"error": {**OPENAI_ERROR["error"], "message": "sk-key-of-ours of account-of-ours is no key."}}


@pytest.mark.parametrize("stream", [True, False])
def test_an_upstream_that_quotes_our_key_tells_no_client(
    serve: Serve, upstream: FakeUpstream, stream: bool
) -> None:
    proxy = serve(KEYED, UPSTREAM_API_KEY="sk-key-of-ours")
    upstream.says(*answer(QUOTING, 401))
    assert_error(proxy.chat(stream=stream), 401, "*** of *** is no key.")


def test_nor_in_the_midst_of_a_stream(serve: Serve, upstream: FakeUpstream) -> None:
    proxy = serve(KEYED, UPSTREAM_API_KEY="sk-key-of-ours")
    upstream.says(*sse(ROLE + delta(content="Hello") + event(**QUOTING)))
    assert b"*** of *** is no key." in proxy.chat(stream=True).content


NO_ANSWER = {
    "an error frame": (event(error={"message": "boom", "code": 429}, choices=[]), 429),
    "an error frame without a status": (b'data: {"error": {"message": "boom"}}\n\n', 502),
    "a role alone": (ROLE + DONE, 502),
    "a role and an error": (ROLE + b'data: {"error": {"message": "boom"}}\n\n' + DONE, 502),
    "usage alone": (USAGE + DONE, 502),
    "nothing": (b"", 502),
    "comments": (b": still thinking\n\n" * 3, 502),
}


@pytest.mark.parametrize("name", NO_ANSWER)
def test_what_has_not_begun_is_a_status(proxy: ProxyServer, upstream: FakeUpstream, name: str) -> None:
    body, status = NO_ANSWER[name]
    upstream.says(HEAD, *([chunk(body)] if body else []), END)
    assert_error(proxy.chat(stream=True), status)


def test_a_whole_answer_that_is_an_error_is_a_status(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    upstream.says(*answer({"error": {"message": "boom", "code": 503}}))
    assert_error(proxy.chat(), 503, "boom")


BEGINNINGS = {
    "content": delta(content="x"),
    "a tool call": delta(tool_calls=[{"index": 0, "id": "c", "type": "function", "function": {"name": "f"}}]),
    "a refusal": delta(refusal="No."),
    "audio": delta(audio={"id": "a", "transcript": "x"}),
    "reasoning": delta(reasoning_content="hm"),
    "a finish": delta(finish="stop"),
    "the second choice": delta(index=1, content="x"),
}


@pytest.mark.parametrize("name", BEGINNINGS)
def test_the_status_goes_out_with_the_first_delta_that_carries_anything(
    proxy: ProxyServer, upstream: FakeUpstream, name: str
) -> None:
    upstream.says(HEAD, chunk(ROLE), chunk(BEGINNINGS[name]), HANG)
    with proxy.client.stream("POST", "/v1/chat/completions", json=call(stream=True)) as got:
        assert next(got.iter_raw()) == ROLE + BEGINNINGS[name]


BROKEN = {
    "reset": [RESET],
    "closed": [CLOSE],
    "bad chunking": [b"zz\r\n", CLOSE],
    "cut inside an event": [chunk(b'data: {"cho'), RESET],
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_stream_that_breaks_ends_with_an_error_event(
    proxy: ProxyServer, upstream: FakeUpstream, name: str
) -> None:
    said = ROLE + delta(content="half a ")
    upstream.says(HEAD, chunk(said), 0.05, *BROKEN[name])
    got = proxy.chat(stream=True)
    assert got.status_code == 200
    assert got.content.startswith(said)
    error = json.loads(got.content.removeprefix(said).removeprefix(b"data: "))
    assert error["error"]["type"] == "upstream_error"
    assert b"[DONE]" not in got.content


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "steps",
    [
        [RESET],
        [CLOSE],
        [b"SSH-2.0\r\n\r\n", CLOSE],
        [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", CLOSE],
    ],
)
def test_an_upstream_that_talks_nonsense_is_502(
    proxy: ProxyServer, upstream: FakeUpstream, stream: bool, steps: list[object]
) -> None:
    upstream.says(*steps)
    assert_error(proxy.chat(stream=stream), 502)


def test_a_redirection_is_not_followed(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    upstream.says(*answer(b"", 307, "location: http://127.0.0.1:1/\r\n"))
    assert_error(proxy.chat(), 502, "base_url")


def test_an_upstream_that_is_not_there_is_502(serve: Serve) -> None:
    assert_error(serve(UPSTREAM_BASE_URL="http://127.0.0.1:9/v1").chat(stream=True), 502)


SLOW = """
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", first_token: 200ms, total: 500ms}}
pipelines: {default: {upstreams: [main]}}
"""


@pytest.mark.parametrize("steps", [[HANG], [HEAD, HANG], [HEAD, chunk(ROLE), HANG]])
def test_a_first_delta_that_is_late_is_504(serve: Serve, upstream: FakeUpstream, steps: list[object]) -> None:
    upstream.says(*steps)
    assert_error(serve(SLOW).chat(stream=True), 504)
    assert upstream.last.closed.wait(10)


def test_a_whole_answer_has_the_total_time(serve: Serve, upstream: FakeUpstream) -> None:
    upstream.says(0.3, *answer(completion()))
    assert serve(SLOW.replace("500ms", "5s")).chat().status_code == 200
    upstream.says(HANG)
    assert_error(serve(SLOW).chat(), 504)


def test_a_stream_that_takes_too_long_ends_with_an_error_event(serve: Serve, upstream: FakeUpstream) -> None:
    upstream.says(HEAD, chunk(ROLE + delta(content="x")), HANG)
    got = serve(SLOW.replace("200ms", "5s").replace("500ms", "1500ms")).chat(stream=True)
    assert b'"upstream_timeout"' in got.content.splitlines()[-2]
    assert upstream.last.closed.wait(10)


@pytest.mark.parametrize(
    "parts", [[ROLE + delta(content="x") + DONE], [ROLE + delta(content="x"), DONE]], ids=["at once", "alone"]
)
@pytest.mark.parametrize("written", [(b"", b""), (b"\n", b"\r\n"), (b"data: ", b"data:")])
def test_a_stream_is_over_soon_after_its_end_though_the_upstream_stays(
    proxy: ProxyServer, upstream: FakeUpstream, parts: list[bytes], written: tuple[bytes, bytes]
) -> None:
    sent = [part.replace(*written) if written[0] else part for part in parts]
    upstream.says(HEAD, *[step for part in sent for step in (chunk(part), 0.1)], HANG)
    got = proxy.chat(stream=True)  # a client that waits for 10 s
    assert got.content == b"".join(sent)
    assert upstream.last.closed.wait(10)


def test_what_comes_behind_the_end_of_a_stream_does_not_undo_it(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    upstream.says(HEAD, chunk(ROLE + delta(content="x") + DONE), 0.1, chunk(b": ping\n\n"), HANG)
    assert b'"error"' not in proxy.chat(stream=True).content


# What stands around a completion.


def test_unknown_paths_methods_and_pipelines_are_openai_errors(proxy: ProxyServer) -> None:
    assert_error(proxy.client.get("/nowhere"), 404)
    assert_error(proxy.chat(path="/pipelines/other/v1/chat/completions"), 404, "default")
    refused = proxy.client.get("/v1/chat/completions")
    assert_error(refused, 405)
    assert refused.headers["allow"] == "POST"
    assert_error(proxy.client.post("/healthz"), 405)


def test_the_server_says_that_it_is_alive_and_ready(proxy: ProxyServer) -> None:
    assert proxy.client.get("/healthz").status_code == 200
    assert proxy.client.get("/readyz").json() == {"status": "ready", "degraded": []}
    proxy.app.drain()
    draining = proxy.client.get("/readyz")
    assert draining.status_code == 503
    assert draining.json()["status"] == "draining"


def test_models_are_the_upstreams_own_where_none_is_set(proxy: ProxyServer) -> None:
    listed = proxy.client.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["fake"]
    assert proxy.client.get("/v1/models/fake").json()["object"] == "model"
    assert_error(proxy.client.get("/v1/models/other"), 404)


@pytest.mark.parametrize("base", ["", "/v1", "/pipelines/default", "/pipelines/default/v1"])
def test_models_are_wherever_completions_are(proxy: ProxyServer, base: str) -> None:
    assert proxy.chat(path=f"{base}/chat/completions").status_code == 200
    assert [model["id"] for model in proxy.client.get(f"{base}/models").json()["data"]] == ["fake"]
    assert proxy.client.get(f"{base}/models/fake").json()["object"] == "model"
    assert_error(proxy.client.get(f"{base}/models/other"), 404)


def test_a_pipeline_lists_its_own_models(serve: Serve) -> None:
    proxy = serve(TWO_PIPELINES)
    assert [model["id"] for model in proxy.client.get("/v1/models").json()["data"]] == ["large", "small"]
    assert [m["id"] for m in proxy.client.get("/pipelines/quick/v1/models").json()["data"]] == ["small"]
    assert_error(proxy.client.get("/pipelines/quick/v1/models/large"), 404)
    missing = proxy.client.get("/pipelines/none/v1/models")
    assert_error(missing, 404)
    assert missing.json()["error"]["code"] == "pipeline_not_found"


def test_models_are_the_set_ones(serve: Serve, upstream: FakeUpstream) -> None:
    proxy = serve(UPSTREAM_MODEL="org/model-1")
    assert proxy.client.get("/v1/models/org/model-1").json()["id"] == "org/model-1"
    assert proxy.chat().status_code == 200
    assert upstream.last.json["model"] == "org/model-1"


def test_named_pipelines_have_their_own_model_and_chain(serve: Serve, upstream: FakeUpstream) -> None:
    proxy = serve("""
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default: {upstreams: [main]}
  calm: {upstreams: [main], model: calm-1, request: [{drop_messages: {sources: [silence]}}]}
""")
    messages = [{"role": "assistant", "content": "Still there?", "metadata": {"source": "silence"}}]
    messages.append({"role": "user", "content": "Yes"})
    proxy.chat(messages, path="/pipelines/calm/v1/chat/completions")
    assert upstream.last.json == {"model": "calm-1", "messages": [{"role": "user", "content": "Yes"}]}
    proxy.chat(messages)
    assert len(upstream.last.json["messages"]) == 2


def test_client_headers_stay_here_unless_listed(serve: Serve, upstream: FakeUpstream) -> None:
    sent = {"X-Mine": "1", "Authorization": "Bearer client-key", "Cookie": "a=b", "X-Session-Id": "s1"}
    proxy = serve(UPSTREAM_API_KEY="sk-upstream")
    proxy.chat(headers=sent)
    assert upstream.last.headers["authorization"] == "Bearer sk-upstream"
    assert not {"x-mine", "cookie", "x-session-id"} & upstream.last.headers.keys()
    assert b"client-key" not in str(upstream.last.headers).encode()


def test_listed_headers_and_the_clients_key_go_on(serve: Serve, upstream: FakeUpstream) -> None:
    proxy = serve("""
upstreams:
  main: {base_url: "${UPSTREAM_BASE_URL}", forward_headers: [X-Mine], forward_key: true, headers: {x-org: o1}}
pipelines: {default: {upstreams: [main]}}
""")
    proxy.chat(headers={"X-Mine": "1", "Authorization": "Bearer client-key"})
    assert upstream.last.headers["x-mine"] == "1"
    assert upstream.last.headers["x-org"] == "o1"
    assert upstream.last.headers["authorization"] == "Bearer client-key"


def test_the_session_is_named_in_the_answer(agora: ProxyServer) -> None:
    assert agora.chat(session_id="s 1/ä").headers["x-turnkeeper-session"] == "s%201/%C3%A4"
    assert agora.chat(params={"session_id": "q1"}).headers["x-turnkeeper-session"] == "q1"
    assert agora.chat(channel="room\r\nX-Evil: 1").headers.get("x-evil") is None
    assert "x-turnkeeper-session" not in agora.chat().headers
