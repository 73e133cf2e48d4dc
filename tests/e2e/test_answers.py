"""Answer filters on the wire: streams and whole answers, from outside."""

import json
import time
from typing import Any

import openai
import pytest

from tests.peers.fake_upstream import (
    DONE,
    END,
    HANG,
    HEAD,
    ROLE,
    FakeUpstream,
    answer,
    chunk,
    completion,
    delta,
    event,
    sse,
    stream_of,
)
from tests.proxy_server import Serve
from tests.remembering import assistant_message, call, stored_entries, texts, user

CONFIG = """
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", first_token: 2s}}
pipelines:
  default: {upstreams: [main], answer: [%s]}
"""


def chunks(stream: bytes) -> list[Any]:
    return [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: {")]


def words(stream: bytes) -> str:
    deltas = [choice["delta"] for each in chunks(stream) for choice in each.get("choices", ())]
    return "".join(delta.get("content") or "" for delta in deltas)


def test_a_stream_is_made_speakable(serve: Serve, upstream: FakeUpstream) -> None:
    upstream.says(*sse(stream_of("Use **", "two** eggs ", "🍳 and [flour](https://x.example).")))
    got = serve(CONFIG % "speakable").chat(stream=True)
    assert words(got.content) == "Use two eggs and flour."
    assert got.content.endswith(DONE)


def test_a_whole_answer_is_made_speakable(serve: Serve, upstream: FakeUpstream) -> None:
    upstream.says(*answer(completion("Use **two** eggs.")))
    assert serve(CONFIG % "speakable").chat().json()["choices"][0]["message"]["content"] == "Use two eggs."


def test_what_is_speakable_already_passes_byte_for_byte(serve: Serve, upstream: FakeUpstream) -> None:
    body = stream_of("Two", " eggs.")
    upstream.says(*sse(body))
    assert serve(CONFIG % "speakable, hide_reasoning").chat(stream=True).content == body


def test_reasoning_is_hidden(serve: Serve, upstream: FakeUpstream) -> None:
    upstream.says(*sse(ROLE + delta(reasoning_content="hm") + delta(content="<think>so</think>Two.") + DONE))
    got = serve(CONFIG % "hide_reasoning").chat(stream=True)
    assert words(got.content) == "Two."
    assert b"hm" not in got.content


def test_one_choice_that_is_over_leaves_the_other_filtered(serve: Serve, upstream: FakeUpstream) -> None:
    first = delta(0, content="Hello") + delta(1, content="Mail ann@exam") + delta(0, finish="stop")
    rest = delta(1, content="ple.org or bob@example.org now") + delta(1, finish="stop") + DONE
    upstream.says(HEAD, chunk(first), 0.2, chunk(rest), END)
    got = serve(CONFIG % "redact").chat(stream=True, n=2)
    assert b"ple.org" not in got.content
    assert words(got.content).count("[email]") == 2


def test_a_message_beside_the_deltas_is_filtered(serve: Serve, upstream: FakeUpstream) -> None:
    """As some vendors say all of it once more in their last chunk."""
    whole = {"role": "assistant", "content": "Mail ann@example.org"}
    last = event(choices=[{"index": 0, "delta": {}, "message": whole, "finish_reason": "stop"}])
    upstream.says(*sse(ROLE + delta(content="Mail ann@") + delta(content="example.org") + last + DONE))
    got = serve(CONFIG % "redact").chat(stream=True)
    assert b"ple.org" not in got.content
    assert words(got.content) == "Mail [email]"
    messages = [choice.get("message") for each in chunks(got.content) for choice in each["choices"]]
    assert [each["content"] for each in messages if each] == ["Mail [email]"]


def test_words_behind_the_finish_are_filtered(serve: Serve, upstream: FakeUpstream) -> None:
    late = delta(content="Mail ann@example.org or bob@example.org")
    upstream.says(HEAD, chunk(stream_of("Hello.").removesuffix(DONE)), 0.2, chunk(late + DONE), END)
    got = serve(CONFIG % "redact").chat(stream=True)
    assert b"ple.org" not in got.content
    assert words(got.content) == "Hello.Mail [email] or [email]"


def test_a_stream_that_breaks_says_what_it_held_back(serve: Serve, upstream: FakeUpstream) -> None:
    upstream.says(HEAD, chunk(ROLE + delta(content="My number is +49 30 12")), 0.05, "reset")
    got = serve(CONFIG % "redact").chat(stream=True)
    assert words(got.content).startswith("My number is")
    assert b'"upstream_error"' in got.content.splitlines()[-2]


def test_agora_is_told_first_whether_it_may_interrupt(serve: Serve, upstream: FakeUpstream) -> None:
    body = stream_of("Two")
    upstream.says(*sse(body))
    got = serve(CONFIG % "interruptable: {value: false}").chat(stream=True)
    first, rest = got.content.split(b"\n\n", 1)
    assert json.loads(first[6:])["metadata"] == {"interruptable": False}
    assert rest == body


FILLER = "filler: {after: %s, phrases: [One moment.]}"


def test_a_late_answer_is_preceded_by_a_filler(serve: Serve, upstream: FakeUpstream) -> None:
    body = stream_of("Two", " eggs.")
    upstream.says(1.0, HEAD, chunk(body), END)
    proxy = serve(CONFIG % FILLER % "200ms")
    started = time.monotonic()
    asked: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
    with proxy.client.stream("POST", "/v1/chat/completions", json=asked) as got:
        pieces = got.iter_raw()
        first = next(pieces)
        assert 0.15 < time.monotonic() - started < 2
        assert words(first) == "One moment. "
        assert words(b"".join(pieces)) == "Two eggs."


@pytest.mark.parametrize("others", ["", ", speakable", ", redact"])
def test_a_filler_and_its_answer_are_one_completion(
    serve: Serve, upstream: FakeUpstream, others: str
) -> None:
    odd = b": hm\n\ndata: odd\n\n" if not others else b": hm\n\n"
    upstream.says(0.6, HEAD, chunk(ROLE + odd + delta(content="Two")), chunk(stream_of(" eggs.")), END)
    body = serve(CONFIG % (FILLER % "100ms" + others)).chat(stream=True).content
    found = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
    assert words(body) == "One moment. Two eggs."
    assert len({(each["id"], each["created"]) for each in found}) == 1
    roles = [choice["delta"].get("role") for each in found for choice in each["choices"]]
    assert (roles[0], set(roles[1:])) == ("assistant", {None})
    assert {each["model"] for each in found} == {"fake"}
    assert "usage" in found[-1]
    assert odd in body
    assert body.endswith(DONE)


def test_two_fillers_are_two_completions(serve: Serve, upstream: FakeUpstream) -> None:
    upstream.says(0.5, HEAD, chunk(stream_of("Two.")), END)
    proxy = serve(CONFIG % FILLER % "100ms")
    ids = {json.loads(proxy.chat(stream=True).content.splitlines()[0][6:])["id"] for _ in range(2)}
    assert len(ids) == 2


def test_what_a_client_adds_up_has_one_speaker(serve: Serve, upstream: FakeUpstream) -> None:
    upstream.says(0.5, HEAD, chunk(stream_of("Two", " eggs.")), END)
    url = serve(CONFIG % FILLER % "100ms").url
    with (
        openai.OpenAI(base_url=url, api_key="x", max_retries=0) as client,
        client.chat.completions.stream(model="fake", messages=[{"role": "user", "content": "Hi"}]) as stream,
    ):
        [choice] = stream.get_final_completion().choices
    assert (choice.message.role, choice.message.content) == ("assistant", "One moment. Two eggs.")


def test_what_is_cut_short_behind_a_filler_keeps_all_that_was_to_be_said(
    serve: Serve, upstream: FakeUpstream
) -> None:
    upstream.says(0.5, HEAD, chunk(stream_of("Two eggs, and a pinch of salt.")), END)
    proxy = serve("memory: {sessions: 'memory:'}\n" + CONFIG % FILLER % "100ms")
    call(proxy, user("Hi"), stream=True)
    assert texts(stored_entries(proxy)) == [
        ("user", "Hi"),
        ("assistant", "One moment. Two eggs, and a pinch of salt."),
    ]
    upstream.says(*sse(stream_of("Yes.")))
    call(proxy, user("Hi"), assistant_message("One moment. Two eggs"), user("Wait"), stream=True)
    [_, heard, *_] = stored_entries(proxy)
    assert (heard.content, heard.interrupted) == ("One moment. Two eggs", True)
    assert heard.original == "One moment. Two eggs, and a pinch of salt."


@pytest.mark.parametrize(("stream", "after"), [(True, "5s"), (False, "200ms")])
def test_an_answer_in_time_has_no_filler(
    serve: Serve, upstream: FakeUpstream, stream: bool, after: str
) -> None:
    body = stream_of("Two") if stream else json.dumps(completion()).encode()
    upstream.says(*(sse(body) if stream else [0.4, *answer(body)]))
    assert serve(CONFIG % FILLER % after).chat(stream=stream).content == body


def test_an_answer_that_began_in_time_is_not_broken_by_a_filler(serve: Serve, upstream: FakeUpstream) -> None:
    body = stream_of("Two", " eggs.")
    half = body.index(b"eggs")
    upstream.says(HEAD, chunk(body[:half]), 1.5, chunk(body[half:]), END)
    assert serve(CONFIG % FILLER % "1s").chat(stream=True).content == body


def test_a_failure_after_a_filler_is_an_error_event(serve: Serve, upstream: FakeUpstream) -> None:
    filling = CONFIG % FILLER % "200ms"
    patient = filling.replace("first_token: 2s", "first_token: 9s")
    upstream.says(0.6, *answer({"error": {"message": "Busy."}}, 503))
    got = serve(patient).chat(stream=True)
    assert got.status_code == 200
    assert b"Busy." in got.content
    assert b"[DONE]" not in got.content
    upstream.says(0.6, *answer(completion()))
    assert b"asked for a stream" in serve(patient).chat(stream=True).content
    upstream.says(HANG)
    assert b"upstream_timeout" in serve(filling).chat(stream=True).content
