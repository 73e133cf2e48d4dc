"""Sessions carried from one store to another over HTTP, long ones too, and what deleting leaves."""

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Address
from tests.peers.fake_upstream import CLOSE, HEAD, ROLE, FakeUpstream, chunk, delta, sse, stream_of
from tests.peers.redis_server import RedisServer, stopped
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import CONFIG, IMPATIENT, assistant_message, call, stored_entries, texts, user

ALL = "/v1/memory/sessions"
KEYS = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="


@pytest.fixture(params=["sqlite", "postgresql", "redis", "memory"])
def url(request: pytest.FixtureRequest, address: Address) -> str:
    return address(request.param)


@pytest.fixture
def proxy(url: str, serve: Serve) -> ProxyServer:
    encrypted = CONFIG.replace('"${MEMORY_URL}"', f'"${{MEMORY_URL}}", encryption: [{KEYS}], reasoning: true')
    return serve(encrypted, MEMORY_URL=url)


def exported(proxy: ProxyServer, session: str) -> Any:
    got = proxy.client.get(f"{ALL}/{session}")
    assert got.status_code == 200, got.text
    return got.json()


def test_a_long_session_is_carried_in_and_out(proxy: ProxyServer) -> None:
    lines = [
        line for n in range(2500) for line in (user(f"{n} " + "é" * 800, n), assistant_message("y" * 800, n))
    ]
    call(proxy, user("Before."))
    for _ in range(2):
        assert proxy.client.put(f"{ALL}/s1", json={"contents": lines}).status_code == 200
    whole = exported(proxy, "s1")
    assert [line["content"] for line in whole["contents"]] == [line["content"] for line in lines]
    assert proxy.client.put(f"{ALL}/s2", json=whole).status_code == 200
    assert exported(proxy, "s2") == whole
    assert call(proxy, user("And?", 2500)).headers.get("x-turnkeeper-degraded") is None
    assert proxy.client.delete(f"{ALL}/s1").status_code == 204


def test_an_imported_call_goes_on_with_words_that_were_said_before(proxy: ProxyServer) -> None:
    again = "Yes please do that now"
    imported = [user(again), assistant_message("Okay, done.")]
    assert proxy.client.put(f"{ALL}/s1", json={"contents": imported}).status_code == 200
    call(proxy, assistant_message("Okay, d"), user(again))
    stored_entries(proxy)
    contents = [line["content"] for line in exported(proxy, "s1")["contents"]]
    assert contents.count(again) == 2


def test_an_import_is_exactly_what_was_exported(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    thinking = delta(reasoning_content="She wants ") + delta(reasoning_content="tea.")
    upstream.says(*sse(ROLE + thinking + stream_of("Tea", ", then.")))
    call(proxy, user("Tea or coffee?", 7), stream=True)
    stored_entries(proxy)
    call(proxy, user("Tea or coffee?", 7), assistant_message("Tea", 7), user("Hm?", 8), stream=True)
    stored_entries(proxy)
    again = {**user("Back again.", 0), "timestamp": 100}
    call(proxy, again, stream=True)  # a new life
    stored_entries(proxy)
    upstream.says(HEAD, chunk(ROLE + delta(content="Half a ")), "reset")
    more = {**user("Tell me.", 1), "timestamp": 110}
    call(proxy, again, assistant_message("Tea, then.", 0), more, stream=True)
    before = stored_entries(proxy)
    assert {entry.call for entry in before} == {0, 1}
    assert before[0].recorded_at > 0
    assert before[1].interrupted
    assert before[1].reasoning == "She wants tea."
    assert (before[-1].pending, before[-1].broken) == (True, True)
    whole = exported(proxy, "s1")
    assert whole["contents"][1]["reasoning_content"] == "She wants tea."
    assert proxy.client.put(f"{ALL}/s2", json=whole).status_code == 200
    assert stored_entries(proxy, "s2") == before
    assert exported(proxy, "s2") == whole


def test_an_import_whose_turns_go_back_is_refused_at_once(serve: Serve) -> None:
    proxy = serve(CONFIG)
    messages = [{"role": "assistant" if i % 2 else "user", "content": f"Line {i}."} for i in range(130)]
    own = [{"life": 10 * (i < 100), "turn": i // 2} for i in range(130)]
    whole = {"contents": messages, "turnkeeper": {"entries": own, "life": 10, "turns": 70}}
    got = proxy.client.put(f"{ALL}/s1", json=whole)
    assert got.status_code == 400
    assert "entry 101 goes back behind the turn before it" in got.json()["error"]["message"]


@pytest.mark.parametrize(
    "own",
    [
        1,
        {},
        {"entries": [{}, {}]},
        {"entries": [{"turn": "x"}]},
        {"entries": [{"turn": 5}], "turns": 5},
        {"colour": 1},
    ],
)
def test_what_does_not_belong_to_an_import_is_refused(serve: Serve, own: Any) -> None:
    proxy = serve(CONFIG)
    got = proxy.client.put(f"{ALL}/s1", json={"contents": [user("Hi")], "turnkeeper": own})
    assert got.status_code == 400
    assert got.json()["error"]["param"] == "turnkeeper"


def test_a_deleted_session_stays_deleted_while_a_turn_of_it_is_answered(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    call(proxy, user("I am Ann.", 0))
    stored_entries(proxy)
    upstream.says(HEAD, chunk(ROLE + delta(content="Hello")), 0.2, chunk(delta(content=" Ann.")), CLOSE)
    path, headers = "/v1/chat/completions", {"X-Session-Id": "s1"}
    body = {"model": "m", "stream": True, "messages": [user("Who am I?", 1)]}
    with proxy.client.stream("POST", path, json=body, headers=headers) as got:
        parts = got.iter_raw()
        next(parts)
        assert proxy.client.delete(f"{ALL}/s1").status_code == 204
        with contextlib.suppress(Exception):  # the upstream breaks off
            list(parts)
    assert stored_entries(proxy) == []
    assert proxy.client.get(f"{ALL}/s1").status_code == 404
    upstream.says(*sse(stream_of("Hello", " there.")))
    call(proxy, user("A new start.", 0), stream=True)
    assert texts(stored_entries(proxy)) == [("user", "A new start."), ("assistant", "Hello there.")]


def test_a_turn_that_waited_through_an_outage_brings_no_deleted_session_back(
    serve: Serve, upstream: FakeUpstream, tmp_path: Path
) -> None:
    with contextlib.closing(RedisServer(tmp_path)) as server:
        here, there = serve(IMPATIENT, MEMORY_URL=server.url), serve(CONFIG, MEMORY_URL=server.url)
        call(here, user("I am Ann.", 0))
        stored_entries(here)
        with stopped(server):
            call(here, user("Who am I?", 1))
            time.sleep(0.7)  # it is tried again, at growing intervals
        assert there.client.delete(f"{ALL}/s1").status_code in {204, 503}
        there.client.delete(f"{ALL}/s1")
        time.sleep(0.1)
        assert stored_entries(here) == []
