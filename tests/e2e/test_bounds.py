"""What one caller sends is bounded by its size, so that no other caller waits for it."""

import asyncio
import gzip
import json
import threading
import time
import tracemalloc
from importlib import import_module
from typing import Any

import pytest

from proxy.answer.transcript import transcript
from proxy.memory.tasks import LargeWork
from tests.peers.fake_upstream import DONE, END, HEAD, USAGE, FakeUpstream, answer, chunk, completion, delta
from tests.proxy_server import ProxyServer, Serve
from tests.waiting import until

CHAT, EXPLAIN = "/v1/chat/completions", "/v1/explain"
SESSION = {"X-Session-Id": "long"}
WORDS = "and so on, "
CONFIG = """
memory: {sessions: "memory:"}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default: {upstreams: [main], request: [{rewrite: {replace: [{pattern: a, with: "%s"}]}}]}
"""


def body(content: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content, **fields}]}


MUCH: dict[str, dict[str, Any]] = {
    "parts": body([{"type": "text", "text": ""}] * 40_000),
    "metadata": body("Hi", metadata={f"k{i}": 1 for i in range(110_000)}),
    "numbers": body("Hi", metadata={"k": [0] * 300_000}),
    "tool calls": {
        "model": "m",
        "messages": [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}] * 30_000}],
    },
    "top level": {**body("Hi"), **{f"k{i}": 1 for i in range(110_000)}},
    "escapes": body("\n" * 520_000),
}


@pytest.mark.parametrize("path", [CHAT, EXPLAIN])
@pytest.mark.parametrize("kind", MUCH)
def test_more_than_half_a_megabyte_outside_of_texts_is_refused(
    agora: ProxyServer, kind: str, path: str
) -> None:
    got = agora.client.post(path, json=MUCH[kind])
    assert got.status_code == 413, got.text[:200]
    error = got.json()["error"]
    assert error["code"] == "request_too_large"
    assert error["message"].startswith("The body has more than 500000 bytes outside of its texts")


def test_it_is_refused_while_it_is_still_arriving(agora: ProxyServer) -> None:
    """A parser never sees it."""
    sent = threading.Event()

    def pieces() -> Any:
        yield b'{"model": "m", "messages": [{"role": "user", "content": ['
        for _ in range(3000):
            yield b"{}," * 3000
        sent.set()

    got = agora.client.post(CHAT, content=pieces())
    assert (got.status_code, got.json()["error"]["code"]) == (413, "request_too_large")
    assert sent.is_set(), "the client was let finish"


def test_a_compressed_body_is_measured_too(agora: ProxyServer) -> None:
    packed = gzip.compress(json.dumps(MUCH["parts"]).encode())
    got = agora.client.post(CHAT, content=packed, headers={"Content-Encoding": "gzip"})
    assert (got.status_code, got.json()["error"]["code"]) == (413, "request_too_large")


def test_a_picture_of_many_megabytes_goes_through(agora: ProxyServer, upstream: FakeUpstream) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9_000_000}}
    sent = body([{"type": "text", "text": "What is this?"}, picture])
    got = agora.client.post(CHAT, json=sent, headers=SESSION)
    assert (got.status_code, got.headers.get("x-turnkeeper-degraded")) == (200, None)
    assert upstream.last.json["messages"][-1]["content"][-1] == picture


def test_fifteen_megabytes_of_text_pass_without_memory(agora: ProxyServer, upstream: FakeUpstream) -> None:
    sent = body("word " * 3_000_000)
    got = agora.client.post(CHAT, json=sent, headers=SESSION)
    assert (got.status_code, got.headers["x-turnkeeper-degraded"]) == (200, "memory")
    assert upstream.last.json["messages"] == sent["messages"]
    got = agora.client.post(CHAT, json=sent)
    assert (got.status_code, got.headers.get("x-turnkeeper-degraded")) == (200, None), (
        "there is none to leave"
    )


def test_a_compressed_bomb_is_unpacked_no_further_than_the_limit(serve: Serve) -> None:
    proxy = serve(CONFIG % "c" + "listen: {max_body: 1MB}\n")
    bomb = gzip.compress(b" " * 200_000_000)
    assert len(bomb) < 1_000_000
    tracemalloc.start()
    try:
        got = proxy.client.post(CHAT, content=bomb, headers={"Content-Encoding": "gzip"})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (got.status_code, got.json()["error"]["code"]) == (413, "request_too_large")
    assert peak < 20_000_000


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_has_a_largest_size(
    agora: ProxyServer, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr("proxy.turn.relay.LARGEST_ANSWER", 100_000)
    monkeypatch.setattr("proxy.upstream.attempt.LARGEST_ANSWER", 100_000)
    whole = answer(completion("x" * 120_000))
    # What arrives in one piece is passed on as one: more than that is left.
    streamed = [HEAD, *[chunk(delta(content="x" * 1000))] * 600, chunk(DONE), END]
    upstream.says(*(streamed if stream else whole))
    got = agora.client.post(CHAT, json={**body("Hi"), "stream": stream})
    if stream:
        assert 0 < got.content.count(b"data: ") < 600
        assert b"more than 64 MB" in got.content.rpartition(b"data: ")[2]
    else:
        assert (got.status_code, got.json()["error"]["code"]) == (502, "upstream_broken")


def stored_messages(agora: ProxyServer) -> list[dict[str, Any]]:
    return agora.client.get("/v1/memory/sessions/long").json().get("contents", [])


def test_more_speech_than_memory_takes_in_goes_on_without_it(agora: ProxyServer) -> None:
    said = [{"role": "user", "content": "Hello there."}]
    assert agora.chat(said, headers=SESSION).status_code == 200
    assert until(lambda: len(stored_messages(agora)) == 2)
    much = [
        *said,
        {"role": "assistant", "content": "Hello there."},
        {"role": "user", "content": "x" * 250_001},
    ]
    got = agora.chat(much, headers=SESSION)
    assert (got.status_code, got.headers["x-turnkeeper-degraded"]) == (200, "memory")
    much[-1] = {"role": "user", "content": "x" * 240_000}
    got = agora.chat(much, headers=SESSION)
    assert (got.status_code, got.headers.get("x-turnkeeper-degraded")) == (200, None)
    assert until(lambda: len(stored_messages(agora)) == 4)
    assert len(stored_messages(agora)[2]["content"]) == 240_000


def test_instructions_are_no_speech(agora: ProxyServer) -> None:
    said = [{"role": "system", "content": "x" * 300_000}, {"role": "user", "content": "Hello there."}]
    got = agora.chat(said, headers=SESSION)
    assert (got.status_code, got.headers.get("x-turnkeeper-degraded")) == (200, None)
    assert until(lambda: len(stored_messages(agora)) == 2)


def test_an_endless_answer_is_remembered_as_one_that_broke_off(
    agora: ProxyServer, upstream: FakeUpstream
) -> None:
    upstream.says(*answer(completion("x" * 400_000)))
    got = agora.client.post(CHAT, json=body("Tell me all."), headers=SESSION)
    assert len(got.json()["choices"][0]["message"]["content"]) == 400_000, "the client gets all of it"
    assert until(lambda: len(stored_messages(agora)) == 2)
    assert stored_messages(agora)[1]["content"] == "x" * 250_000 + " […]"


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("kind", ["deltas", "one delta", "whole"])
def test_of_an_answer_the_beginning_alone_is_kept_while_it_is_passed_on(
    serve: Serve, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, kind: str, filtered: bool
) -> None:
    for module in ("proxy.observe.observation", "proxy.turn.relay"):
        monkeypatch.setattr(f"{module}.LARGEST_COPY", 50_000)
    words = "".join(f"Line {i} of the answer. " for i in range(10_000))
    size = len(words) if kind == "one delta" else 1000
    deltas = [chunk(delta(content=words[at : at + size])) for at in range(0, len(words), size)]
    upstream.says(
        *(answer(completion(words)) if kind == "whole" else [HEAD, *deltas, chunk(USAGE), chunk(DONE), END])
    )
    steps = "speakable" if filtered else ""
    proxy = serve(
        CONFIG.replace("upstreams: [main], request", f"upstreams: [main], answer: [{steps}], request") % "c"
    )
    got = proxy.client.post(CHAT, json={**body("Tell me all."), "stream": kind != "whole"}, headers=SESSION)
    text = transcript(got.content).text
    assert text.split() == words.split(), "the client gets all of it"
    assert until(lambda: len(stored_messages(proxy)) == 2)
    stored = stored_messages(proxy)[1]["content"]
    assert stored.endswith(" […]")
    assert text.startswith(stored.removesuffix(" […]"))
    assert 30_000 < len(stored) < 50_000


@pytest.mark.parametrize(
    "step",
    [
        "proxy.turn.turn.read_turn",
        "proxy.turn.chain.run",
        "proxy.memory.view.prompt_view",
        "proxy.upstream.body.compose",
    ],
)
def test_a_large_text_holds_up_nobody_elses_call(
    agora: ProxyServer, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    threads = threads_of(step, monkeypatch)
    loop = agora.run(_current_thread(), within=2)
    assert agora.chat([{"role": "user", "content": WORDS * 10_000}], headers=SESSION).status_code == 200
    assert threads
    assert loop not in threads


def threads_of(step: str, monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads in which a function of the product will have run."""
    module, _, name = step.rpartition(".")
    work, threads = getattr(import_module(module), name), list[threading.Thread]()

    def recorded(*arguments: Any, **named: Any) -> Any:
        threads.append(threading.current_thread())
        return work(*arguments, **named)

    monkeypatch.setattr(step, recorded)
    return threads


async def _current_thread() -> threading.Thread:
    return threading.current_thread()


def test_a_replacement_that_grows_without_bound_fails(serve: Serve) -> None:
    """Else one line of YAML makes a thousand of each letter, and four make memory give out."""
    proxy = serve(CONFIG % ("a" * 1000))
    got = proxy.client.post(CHAT, json=body("a" * 1100))
    assert (got.status_code, got.json()["error"]["code"]) == (500, "filter_failed")
    assert proxy.client.post(CHAT, json=body("a" * 900)).status_code == 200


def test_half_a_character_in_a_large_body_is_no_json(agora: ProxyServer) -> None:
    data = json.dumps(body("\ud83d" + "x" * 900_000)).encode()
    assert agora.client.post(CHAT, content=data).status_code == 200
    data = json.dumps(
        body([{"type": "text", "text": "\ud83d"}, {"type": "x", "x": "x" * 1_000_000}])
    ).encode()
    got = agora.client.post(CHAT, content=data)
    assert (got.status_code, got.json()["error"]["message"][:20]) == (400, "The body is not JSON")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/memory/agents/a/episodes"),
        ("PUT", "/v1/memory/sessions/long/state"),
        ("POST", "/v1/memory/sessions/long/summaries"),
    ],
)
def test_a_body_of_the_memory_api_has_a_megabyte_at_most(agora: ProxyServer, method: str, path: str) -> None:
    got = agora.client.request(method, path, content=b'{"x": "' + b"x" * 1_000_000 + b'"}')
    assert got.status_code == 413
    assert got.json()["error"]["message"] == "The body has more than 1000000 bytes, which is the limit here."


def test_a_session_is_imported_up_to_a_bound(agora: ProxyServer) -> None:
    lines = [{"role": ("user", "assistant")[i % 2], "content": f"Line {i}."} for i in range(10_001)]
    got = agora.client.put("/v1/memory/sessions/long", json={"contents": lines[1:]}, timeout=60)
    assert got.status_code == 200
    export = agora.client.get("/v1/memory/sessions/long", timeout=60).content
    again = agora.client.put("/v1/memory/sessions/long", content=export, timeout=60)
    assert (again.status_code, len(again.json()["contents"])) == (200, 10_000)
    got = agora.client.put("/v1/memory/sessions/long", json={"contents": lines}, timeout=60)
    assert got.status_code == 413
    message = "'contents' has 10001 items; a session of at most 10000 can be imported."
    assert got.json()["error"]["message"] == message


LINES = [
    {"role": ("user", "assistant")[i % 2], "content": f"Line {i}, my number is {i}."} for i in range(700)
]
SUMMARIES = """
memory: {sessions: "memory:", window: {max_messages: 1000, keep_messages: 10}, summaries: {upstream: main}}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines: {default: {upstreams: [main], request: []}}
"""


@pytest.mark.parametrize(
    "step",
    [
        "proxy.memory.summaries.extractive_segment",
        "proxy.memory.summaries.entries_fingerprint",
        "proxy.memory.summaries.session_from_messages",
        "proxy.rest.sessions.read_messages",
    ],
)
def test_a_summary_of_much_holds_up_nobody_elses_call(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    proxy = serve(SUMMARIES)
    threads = threads_of(step, monkeypatch)
    loop = proxy.run(_current_thread(), within=2)
    assert proxy.client.put("/v1/memory/sessions/long", json={"contents": LINES}).status_code == 200
    for options in ({}, {"messages": LINES}):
        got = proxy.client.post("/v1/memory/sessions/long/summaries", json=options)
        assert got.status_code == 200, got.text
    assert threads
    assert loop not in threads


@pytest.mark.parametrize("step", ["proxy.rest.sessions.raw_fields", "proxy.rest.sessions.session_from"])
@pytest.mark.parametrize(("method", "path", "status"), [("POST", "", 201), ("PUT", "/long", 200)])
def test_an_import_of_much_holds_up_nobody_elses_call(
    agora: ProxyServer, monkeypatch: pytest.MonkeyPatch, method: str, path: str, status: int, step: str
) -> None:
    threads = threads_of(step, monkeypatch)
    loop = agora.run(_current_thread(), within=2)
    got = agora.client.request(method, f"/v1/memory/sessions{path}", json={"user": None, "contents": LINES})
    assert (got.status_code, len(got.json()["contents"])) == (status, len(LINES))
    assert len(threads) == 1
    assert loop not in threads


@pytest.mark.parametrize(
    "step",
    [
        "proxy.page.conversations.lines_of",
        "proxy.page.conversations.turns_of_lines",
        "proxy.page.conversations.call_timeline",
    ],
)
def test_the_page_of_a_long_conversation_holds_up_nobody(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    proxy = serve(SUMMARIES.replace("max_messages: 1000", "max_messages: 20"))
    loop = proxy.run(_current_thread(), within=2)
    lines = [{**line, "content": "and so on, " * 100} for line in LINES]
    assert proxy.client.put("/v1/memory/sessions/long", json={"contents": lines}).status_code == 200
    threads = threads_of(step, monkeypatch)
    for path in ("/conversations/long", "/conversations/long?before=300"):
        got = proxy.client.get(path)
        assert got.status_code == 200
        assert got.text.count('id="m') >= 200
    assert threads
    assert loop not in threads


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"content": "x" * 500_001}, "'contents[1]' has more than 500000 characters of speech."),
        (
            {"content": "Hi", "metadata": {f"k{i}": 1 for i in range(110_000)}},
            "The body has more than 500000",
        ),
    ],
)
def test_one_message_of_an_import_has_a_bound(agora: ProxyServer, message: dict[str, Any], said: str) -> None:
    lines = [{"role": "user", "content": "Hi"}, {"role": "assistant", **message}]
    got = agora.client.put("/v1/memory/sessions/long", json={"contents": lines})
    assert (got.status_code, got.json()["error"]["code"]) == (413, "request_too_large")
    assert got.json()["error"]["message"].startswith(said)


def test_what_a_turn_may_hold_can_be_imported(agora: ProxyServer) -> None:
    """An answer that was cut late, whose generated text is stored completely."""
    marks = {"interrupted": True, "original": "x" * 249_000}
    answer = {"role": "assistant", "content": "x" * 240_000, "metadata": marks}
    lines = [{"role": "user", "content": "Hi"}, answer]
    assert agora.client.put("/v1/memory/sessions/long", json={"contents": lines}).status_code == 200


def test_a_turn_too_large_to_be_read_is_not_put_on_a_page(serve: Serve) -> None:
    proxy = serve(CONFIG % "c" + "traces: {keep: 5, content: true}\n")
    for size, shown in ((1000, True), (4_100_000, False)):
        got = proxy.client.post(CHAT, json=body("x" * size))
        name = got.headers["x-request-id"].replace("req_", "turn_")
        page = proxy.client.get(f"/turns/{name}", headers={"Accept": "text/html"})
        assert page.status_code == 200
        assert ("too large to be kept or shown" in page.text) != shown


def test_what_lets_nothing_else_run_runs_one_at_a_time() -> None:
    large, running, most = LargeWork(), 0, 0

    def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.01)
        running -= 1

    async def run() -> None:
        await asyncio.gather(*(large.run(work) for _ in range(6)))

    asyncio.run(run())
    assert most == 1
