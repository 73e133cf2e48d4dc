"""Streams without a content type are filtered all the same, and sent on as they come."""

import json
import time

import pytest

from tests.peers.fake_upstream import (
    DONE,
    END,
    HEAD,
    ROLE,
    FakeUpstream,
    Step,
    answer,
    chunk,
    completion,
    delta,
    sse,
    stream_of,
)
from tests.proxy_server import Serve
from tests.remembering import stored_entries, texts

CONFIG = """
memory: {sessions: "${MEMORY_URL}"}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", retries: 0, first_token: 8s}}
pipelines:
  default: {upstreams: [main], request: [], answer: [hide_reasoning, redact]}
  plain: {upstreams: [main], request: []}
  held: {upstreams: [main], request: [], keep_alive: 100ms, answer: [hide_reasoning, redact]}
  spoken: {upstreams: [main], request: [], answer: [speakable]}
"""
PLAIN, HELD = "/pipelines/plain/v1/chat/completions", "/pipelines/held/v1/chat/completions"
SPOKEN = "/pipelines/spoken/v1/chat/completions"
KINDS = [b"content-type: text/plain\r\n", b"content-type: application/json\r\n", b""]
SECRET = delta(content="<think>hush</think>Mail ann@example.org or ")
CARD = delta(content="card 4111 1111 1111 1111.") + delta(finish="stop") + DONE
OF = {"headers": {"X-Session-Id": "s1"}}


def head(kind: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\n" + kind + b"transfer-encoding: chunked\r\n\r\n"


def words(stream: bytes) -> str:
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: {")]
    deltas = [choice["delta"] for each in chunks for choice in each.get("choices", ())]
    return "".join(delta.get("content") or "" for delta in deltas)


def assert_nothing_leaks(content: bytes) -> None:
    assert not [secret for secret in (b"hush", b"ann@", b"4111") if secret in content]


@pytest.mark.parametrize("path", ["/v1/chat/completions", HELD])
@pytest.mark.parametrize("kind", KINDS)
def test_filters_see_a_stream_under_any_type(
    serve: Serve, upstream: FakeUpstream, kind: bytes, path: str
) -> None:
    late = 0.3 if path == HELD else 0.0
    upstream.says(head(kind), late, chunk(ROLE + SECRET), late, chunk(CARD), END)
    proxy = serve(CONFIG)
    got = proxy.chat(stream=True, path=path, **OF)
    assert got.status_code == 200
    assert_nothing_leaks(got.content)
    assert words(got.content) == "Mail [email] or card [card]."
    assert got.headers["content-type"].startswith("text/event-stream")
    assert texts(stored_entries(proxy))[1:] == [("assistant", "Mail [email] or card [card].")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_under_any_type_is_passed_on_as_it_comes(
    serve: Serve, upstream: FakeUpstream, kind: bytes
) -> None:
    upstream.says(head(kind), chunk(ROLE + delta(content="Hello ")), 2.0, chunk(CARD), END)
    call = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
    started = time.monotonic()
    with serve(CONFIG).client.stream("POST", PLAIN, json=call) as got:
        pieces = got.iter_raw()
        first = next(pieces)
        assert time.monotonic() - started < 1.5
        assert first + b"".join(pieces) == ROLE + delta(content="Hello ") + CARD


BEGINNINGS = [
    b": hm\n\n",
    b"\n\n\r\n",
    b"\xef\xbb\xbf",
    b"event: message\n",
    b"id: 1\n",
    b"retry: 9\r",
    b"data:\n\n",
]


@pytest.mark.parametrize("step", [1, 1000], ids=["byte by byte", "at once"])
@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_however_a_stream_begins_it_is_told_for_one(
    serve: Serve, upstream: FakeUpstream, beginning: bytes, step: int
) -> None:
    body = beginning + SECRET + CARD
    pieces: list[Step] = [
        each for i in range(0, len(body), step) for each in (chunk(body[i : i + step]), 0.0)
    ]
    upstream.says(head(b""), *pieces, END)
    proxy = serve(CONFIG)
    assert proxy.chat(stream=True, path=PLAIN).content == body
    got = proxy.chat(stream=True)
    assert_nothing_leaks(got.content)
    assert got.content.endswith(DONE)


def test_a_mark_before_a_stream_hides_nothing_from_filters(serve: Serve, upstream: FakeUpstream) -> None:
    upstream.says(*sse(b"\xef\xbb\xbf" + SECRET + CARD))
    got = serve(CONFIG).chat(stream=True)
    assert_nothing_leaks(got.content)
    assert "[email]" in words(got.content)


def test_a_whole_answer_stays_one(serve: Serve, upstream: FakeUpstream) -> None:
    body = b"\n \n" + json.dumps(completion("Mail ann@example.org now")).encode()
    upstream.says(head(b""), chunk(body[:1]), 0.05, chunk(body[1:9]), 0.05, chunk(body[9:]), END)
    proxy = serve(CONFIG)
    for stream in (True, False):
        assert proxy.chat(stream=stream, path=PLAIN).content == body
        said = proxy.chat(stream=stream).json()["choices"][0]["message"]["content"]
        assert said == "Mail [email] now"


# --- what cannot be read

HALF_AN_EMOJI = b'data: {"choices": [{"index": 0, "delta": {"content": "\\ud83d ann@example.org "}}]}\n\n'
NO_NUMBER = b'data: {"choices": [{"index": 0, "delta": {"content": "ann@example.org "}, "logprob": NaN}]}\n\n'
NO_UTF8 = b'data: {"choices": [{"index": 0, "delta": {"content": "ann@example.org \xff\xfe"}}]}\n\n'


@pytest.mark.parametrize("odd", [HALF_AN_EMOJI, NO_NUMBER, NO_UTF8])
def test_what_a_patient_client_could_read_is_filtered(
    serve: Serve, upstream: FakeUpstream, odd: bytes
) -> None:
    upstream.says(*sse(ROLE + odd + CARD))
    proxy = serve(CONFIG)
    assert proxy.chat(stream=True, path=PLAIN).content == ROLE + odd + CARD
    got = proxy.chat(stream=True)
    assert_nothing_leaks(got.content)
    assert b"[email]" in got.content
    assert got.content.endswith(DONE)


@pytest.mark.parametrize("odd", [b'data: {"choices": ann@example.org}\n\n', b'data: ["ann@example.org"]\n\n'])
@pytest.mark.parametrize("cut", [True, False])
def test_what_no_filter_can_read_does_not_pass_them(
    serve: Serve, upstream: FakeUpstream, odd: bytes, cut: bool
) -> None:
    said = ROLE + delta(content="Hello dear ") + delta(content="caller")
    steps: list[Step] = (
        [HEAD, chunk(said), 0.1, chunk(odd + CARD)] if cut else [HEAD, chunk(said + odd + CARD)]
    )
    upstream.says(*steps, END)
    proxy = serve(CONFIG)
    assert proxy.chat(stream=True, path=PLAIN).content == said + odd + CARD
    got = proxy.chat(stream=True, **OF)
    assert_nothing_leaks(got.content)
    assert words(got.content) == "Hello dear caller"
    assert b"upstream_broken" in got.content
    assert not got.content.endswith(DONE)
    assert texts(stored_entries(proxy))[1:] == [("assistant", "Hello dear caller")]


def test_what_is_no_answer_of_a_model_is_left_out_by_filters(serve: Serve, upstream: FakeUpstream) -> None:
    body = ROLE + b"event: note\ndata: ann@example.org\n\n" + stream_of("Hello.")
    ping = b'event: ping\ndata: {"type": "ping"}\n\ndata: null\n\n'
    upstream.says(*sse(ping + body))
    proxy = serve(CONFIG)
    assert proxy.chat(stream=True, path=PLAIN).content == ping + body
    got = proxy.chat(stream=True, path=SPOKEN)
    assert got.content == ping + ROLE + stream_of("Hello.")


def test_an_end_inside_an_event_does_not_pass_filters(serve: Serve, upstream: FakeUpstream) -> None:
    torn = b'data: {"choices": [{"delta": {"content": "ann@example.org'
    upstream.says(*sse(ROLE + delta(content="Hello dear caller") + torn))
    got = serve(CONFIG).chat(stream=True)
    assert_nothing_leaks(got.content)
    assert words(got.content) == "Hello dear caller"
    assert b"upstream_broken" in got.content


def test_a_whole_answer_that_no_filter_can_read_is_a_fault(serve: Serve, upstream: FakeUpstream) -> None:
    upstream.says(*answer(b'{"choices": [{"message": {"content": "ann@example.org"'))
    got = serve(CONFIG).chat()
    assert got.status_code == 502
    assert_nothing_leaks(got.content)
    body = json.dumps(completion("Mail ann@example.org x now")).encode().replace(b" x ", b" \\ud83d ")
    upstream.says(*answer(body))
    got = serve(CONFIG).chat()
    assert_nothing_leaks(got.content)
    assert b"[email]" in got.content


HALVES = b"".join(
    b'data: {"choices": [{"index": 0, "delta": {"content": "%s"}}]}\n\n' % half
    for half in (b"Fine \\ud83d", b"\\ude00, thanks.")
)


def test_an_emoji_that_comes_in_two_halves_is_remembered_as_one(serve: Serve, upstream: FakeUpstream) -> None:
    said = ROLE + HALVES + delta(finish="stop") + DONE
    upstream.says(*sse(said))
    proxy = serve(CONFIG)
    assert proxy.chat(stream=True, path=PLAIN, **OF).content == said
    assert texts(stored_entries(proxy))[1:] == [("assistant", "Fine \N{GRINNING FACE}, thanks.")]
