"""Memory from outside: calls over HTTP, a model that records its prompts, real stores."""

import contextlib
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Address
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
from tests.peers.redis_server import RedisServer
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import CONFIG, IMPATIENT, assistant_message, call, stored_entries, texts, user
from tests.serving_process import LISTEN, ServingProcess, at_rest
from tests.waiting import until


@pytest.fixture(params=["sqlite", "postgresql", "redis", "memory"])
def url(request: pytest.FixtureRequest, address: Address) -> str:
    return address(request.param)


@pytest.fixture
def remembering(url: str, serve: Serve) -> ProxyServer:
    return serve(CONFIG, MEMORY_URL=url)


@pytest.mark.parametrize("stream", [True, False])
def test_a_turn_and_its_answer_are_remembered(
    remembering: ProxyServer, upstream: FakeUpstream, stream: bool
) -> None:
    call(remembering, {"role": "system", "content": "Be brief."}, user("Hi"), stream=stream)
    assert texts(stored_entries(remembering)) == [("user", "Hi"), ("assistant", "Hello there.")]


def test_what_the_engine_dropped_comes_back(remembering: ProxyServer, upstream: FakeUpstream) -> None:
    call(remembering, user("I am Ann.", 0))
    stored_entries(remembering)
    call(remembering, user("I am Ann.", 0), assistant_message("Hello there.", 0), user("I like tea.", 1))
    stored_entries(remembering)
    call(remembering, {"role": "system", "content": "Be brief."}, user("Who am I?", 2))
    assert upstream.last.json["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "I am Ann."},
        {"role": "assistant", "content": "Hello there."},
        {"role": "user", "content": "I like tea."},
        {"role": "assistant", "content": "Hello there."},
        {"role": "user", "content": "Who am I?"},
    ]


def test_an_interruption_is_found_where_the_engine_does_not_mark_it(
    remembering: ProxyServer, upstream: FakeUpstream
) -> None:
    upstream.says(*sse(stream_of("Why did the scarecrow", " win an award?")))
    call(remembering, user("A joke!"), stream=True)
    stored_entries(remembering)
    call(remembering, user("A joke!"), assistant_message("why did the scarecrow..."), user("Stop."))
    shown = upstream.last.json["messages"][1]["content"]
    assert "win an award?" in shown
    assert "did not hear" in shown
    entry = stored_entries(remembering)[1]
    assert entry.interrupted
    assert entry.original == "Why did the scarecrow win an award?"


def test_the_same_request_again_leaves_the_same_memory(remembering: ProxyServer) -> None:
    for _ in range(3):
        call(remembering, user("Hi", 0))
    assert texts(stored_entries(remembering)) == [("user", "Hi"), ("assistant", "Hello there.")]


def test_a_failed_turn_leaves_memory_as_it_was(remembering: ProxyServer, upstream: FakeUpstream) -> None:
    call(remembering, user("Hi", 0))
    before = stored_entries(remembering)
    upstream.says(*answer({"error": {"message": "Busy"}}, 503))
    call(remembering, user("Hi", 0), assistant_message("Hello there.", 0), user("More", 1))
    upstream.says(HEAD, chunk(ROLE), "reset")
    call(remembering, user("Hi", 0), assistant_message("Hello there.", 0), user("More", 1), stream=True)
    assert stored_entries(remembering) == before


def test_a_turn_that_broke_is_recorded_as_far_as_it_was_relayed(
    remembering: ProxyServer, upstream: FakeUpstream
) -> None:
    upstream.says(HEAD, chunk(ROLE + delta(content="Half a ")), 0.05, "reset")
    call(remembering, user("Hi"), stream=True)
    assert texts(stored_entries(remembering)) == [("user", "Hi"), ("assistant", "Half a ")]


def test_a_caller_who_hung_up_is_remembered_as_far_as_it_was_relayed(
    remembering: ProxyServer, upstream: FakeUpstream
) -> None:
    upstream.says(HEAD, chunk(ROLE + delta(content="Half a ")), HANG)
    body = {"model": "m", "stream": True, "messages": [user("Hi")]}
    path, headers = "/v1/chat/completions", {"X-Session-Id": "s1"}
    with remembering.client.stream("POST", path, json=body, headers=headers) as got:
        next(got.iter_raw())
    assert upstream.last.closed.wait(10)
    assert texts(stored_entries(remembering)) == [("user", "Hi"), ("assistant", "Half a ")]


def test_tool_calls_are_remembered_with_their_results(
    remembering: ProxyServer, upstream: FakeUpstream
) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    choice = {"type": "function", "function": {"name": "weather"}}
    call(remembering, user("Weather?"), tools=[tool], tool_choice=choice, stream=True)
    calls = [{"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]
    asked: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": calls}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "Mild."}
    call(remembering, user("Weather?"), asked, result, tools=[tool])
    entries = stored_entries(remembering)
    assert [entry.role for entry in entries] == ["user", "assistant", "tool", "assistant"]
    assert entries[1].tool_calls == calls
    assert entries[2].content == "Mild."


def test_background_work_sees_and_leaves_nothing(remembering: ProxyServer, upstream: FakeUpstream) -> None:
    call(remembering, user("I am Ann.", 0))
    before = stored_entries(remembering)
    remembering.chat([user("Sum up.", 9)], headers={"X-Session-Id": "s1", "X-Background": "true"})
    assert upstream.last.json["messages"] == [{"role": "user", "content": "Sum up."}]
    assert stored_entries(remembering) == before


def test_calls_without_a_session_are_not_remembered(remembering: ProxyServer, upstream: FakeUpstream) -> None:
    remembering.chat([user("I am Ann.")])
    remembering.chat([user("Who am I?")])
    assert upstream.last.json["messages"] == [{"role": "user", "content": "Who am I?"}]


@pytest.mark.parametrize(
    ("kept", "accepts", "goes_back"),
    [("true", "vllm", True), ("true", "openai", False), ("true", "any", False), ("false", "vllm", False)],
)
def test_reasoning_goes_back_where_it_is_kept_and_taken(
    serve: Serve, upstream: FakeUpstream, kept: str, accepts: str, goes_back: bool
) -> None:
    config = CONFIG.replace('_URL}"}\nup', f'_URL}}", reasoning: {kept}}}\nup')
    proxy = serve(config.replace('BASE_URL}"', f'BASE_URL}}", accepts: {accepts}'))
    upstream.says(*sse(ROLE + delta(reasoning="Hm. ") + delta(reasoning="Tea.") + stream_of("Tea", "!")))
    call(proxy, user("Tea or coffee?", 0), stream=True)
    entries = stored_entries(proxy)
    assert entries[1].content == "Tea!"
    assert entries[1].reasoning == ("Hm. Tea." if kept == "true" else None)
    call(proxy, user("Why?", 1), stream=True)
    brought = upstream.last.json["messages"][1]
    assert brought["content"] == "Tea!"
    assert brought.get("reasoning_content") == ("Hm. Tea." if goes_back else None)
    assert "reasoning" not in brought
    assert stored_entries(proxy)[1].reasoning == entries[1].reasoning


KEYED = "keys: 'one:secret-1,two:secret-2'\n" + CONFIG


def test_tenants_never_meet(serve: Serve, upstream: FakeUpstream, url: str) -> None:
    proxy = serve(KEYED, MEMORY_URL=url)
    for key, name in (("secret-1", "Ann"), ("secret-2", "Bob")):
        headers = {"X-Session-Id": "s1", "Authorization": f"Bearer {key}"}
        proxy.chat([user(f"I am {name}.", 0)], headers=headers)
    assert texts(stored_entries(proxy, tenant="one"))[0] == ("user", "I am Ann.")
    assert texts(stored_entries(proxy, tenant="two"))[0] == ("user", "I am Bob.")


def test_what_was_said_survives_a_restart(serve: Serve, upstream: FakeUpstream, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'kept.db'}"
    with ProxyServer(_written(tmp_path), {"MEMORY_URL": url, "UPSTREAM_BASE_URL": upstream.url}) as first:
        call(first, user("I am Ann.", 0))
    call(serve(CONFIG, MEMORY_URL=url), user("Who am I?", 1))
    assert upstream.last.json["messages"][0] == {"role": "user", "content": "I am Ann."}


def _written(folder: Path) -> Path:
    path = folder / "first.yaml"
    path.write_text(CONFIG)
    return path


def test_a_dead_redis_costs_a_call_nothing_but_its_memory(
    serve: Serve, upstream: FakeUpstream, tmp_path: Path
) -> None:
    with contextlib.closing(RedisServer(tmp_path)) as server:
        proxy = serve(IMPATIENT, MEMORY_URL=server.url)
        call(proxy, user("I am Ann.", 0))
        stored_entries(proxy)
        server.kill()
        upstream.says(*answer(completion("Still here.")))
        began = time.monotonic()
        got = call(proxy, user("Who am I?", 1))
        assert time.monotonic() - began < 2
        assert got.status_code == 200
        assert got.headers["x-turnkeeper-degraded"] == "memory"
        degraded = {"status": "degraded", "degraded": ["memory"]}
        assert until(lambda: proxy.client.get("/readyz").json() == degraded)
        server.start()
        assert ("user", "Who am I?") in texts(stored_entries(proxy))
        assert proxy.client.get("/readyz").json()["status"] == "ready"


def test_a_locked_file_costs_a_call_its_deadline_at_most(
    serve: Serve, upstream: FakeUpstream, tmp_path: Path
) -> None:
    path = tmp_path / "locked.db"
    proxy = serve(IMPATIENT, MEMORY_URL=f"sqlite:{path}")
    call(proxy, user("I am Ann.", 0))
    stored_entries(proxy)
    with sqlite3.connect(path) as other:
        other.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        assert call(proxy, user("Who am I?", 1)).status_code == 200
        assert time.monotonic() - began < 2
        other.rollback()
    assert ("user", "Who am I?") in texts(stored_entries(proxy))


READY = {"status": "ready", "degraded": []}
DEGRADED = {"status": "degraded", "degraded": ["memory"]}


def stands(proxy: ProxyServer) -> Any:
    return proxy.client.get("/readyz").json()


def failing(proxy: ProxyServer) -> bool:
    return "turnkeeper_memory_failing 1.0" in proxy.client.get("/metrics").text


def test_while_a_file_is_locked_every_turn_and_the_server_say_so(
    serve: Serve, upstream: FakeUpstream, tmp_path: Path
) -> None:
    path = tmp_path / "locked.db"
    proxy = serve(IMPATIENT, MEMORY_URL=f"sqlite:{path}")
    call(proxy, user("I am Ann.", 0))
    stored_entries(proxy)
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        call(proxy, user("Who am I?", 1))
        assert until(lambda: stands(proxy) == DEGRADED, seconds=0.45), "before the writer gives up"
        assert failing(proxy)
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            got = call(proxy, user("Hello?", 0), session="s2")
            assert got.headers["x-turnkeeper-degraded"] == "memory"
            assert stands(proxy) == DEGRADED
            time.sleep(0.05)  # each turn that waits is written by itself
        other.rollback()
    assert ("user", "Who am I?") in texts(stored_entries(proxy))
    assert until(lambda: stands(proxy) == READY)
    assert not failing(proxy)
    assert "x-turnkeeper-degraded" not in call(proxy, user("Thank you.", 3), session="s3").headers


def test_a_redis_that_dies_while_nobody_calls_is_missed(serve: Serve, tmp_path: Path) -> None:
    with contextlib.closing(RedisServer(tmp_path)) as server:
        proxy = serve(IMPATIENT, MEMORY_URL=server.url)
        assert stands(proxy) == READY
        server.kill()
        assert until(lambda: stands(proxy) == DEGRADED)
        assert failing(proxy)
        server.start()
        assert until(lambda: stands(proxy) == READY)
        assert not failing(proxy)


def test_a_redis_that_was_never_there_is_missed_without_any_call(serve: Serve) -> None:
    proxy = serve(IMPATIENT, MEMORY_URL="redis://127.0.0.1:1")
    assert until(lambda: stands(proxy) == DEGRADED, seconds=3)


def test_a_kill_loses_no_turn_that_had_ended_a_moment_before(
    upstream: FakeUpstream, serve: Serve, tmp_path: Path
) -> None:
    url = f"sqlite:{tmp_path / 'killed.db'}"
    environ = {"MEMORY_URL": url, "UPSTREAM_BASE_URL": upstream.url}
    body = {"model": "m", "messages": [user("I am Ann.", 0)]}
    with ServingProcess(tmp_path, LISTEN + CONFIG, **environ) as serving:
        got = serving.client.post("/v1/chat/completions", json=body, headers={"X-Session-Id": "s1"})
        assert got.status_code == 200
        assert until(lambda: at_rest(serving.client))
        serving.kill()
    call(serve(CONFIG, MEMORY_URL=url), user("Who am I?", 1))
    assert upstream.last.json["messages"][0] == {"role": "user", "content": "I am Ann."}
