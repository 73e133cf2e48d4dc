"""Turns shown while they go by, over HTTP and in a terminal."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from proxy.commands.tap import event_line, find_key
from proxy.observe.feed import Event
from tests import preloaded
from tests.peers.fake_upstream import DONE, END, HEAD, ROLE, FakeUpstream, chunk, delta
from tests.proxy_server import CONFIG, ProxyServer, Serve

KEYS = 'keys: "acme:one,globex:two,phone:three:chat"\n' + CONFIG


@contextmanager
def looking(proxy: ProxyServer, key: str = "") -> Iterator[Iterator[dict[str, Any]]]:
    """The events of the feed, from the moment on at which it is open."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with proxy.client.stream("GET", "/v1/turns", headers=headers) as got:
        assert got.status_code == 200
        lines = got.iter_lines()
        next(lines)
        yield (json.loads(line[6:]) for line in lines if line.startswith("data: "))


def test_a_turn_is_shown_when_it_answers_and_when_it_ends(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    upstream.says(HEAD, chunk(ROLE), chunk(delta(content="secret")), 0.2, chunk(DONE), END)
    with looking(proxy) as events:
        proxy.chat(stream=True, headers={"X-Session-Id": "room-1", "X-User-Id": "ann"}, turn_id=7)
        first, last = next(events), next(events)
    assert (first["state"], last["state"]) == ("streaming", "done")
    assert first["id"] == last["id"]
    assert (
        last | {"session": "room-1", "user": "ann", "turn": 7, "model": "fake", "pipeline": "default"} == last
    )
    assert 0 < first["first_token_ms"] == last["first_token_ms"] < last["duration_ms"]
    assert "secret" not in json.dumps(last)


def test_failures_and_hang_ups_are_shown(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    upstream.says(HEAD, chunk(ROLE), chunk(delta(content="one")), 5.0)
    with looking(proxy) as events:
        proxy.chat(content=b"nonsense")
        failed = next(events)
        assert (failed["state"], failed["status"]) == ("failed", 400)
        body = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
        with proxy.client.stream("POST", "/v1/chat/completions", json=body) as got:
            pieces = got.iter_bytes()
            next(pieces)
        assert [next(events)["state"] for _ in range(2)] == ["streaming", "interrupted"]


def test_what_went_by_before_is_shown_first(proxy: ProxyServer) -> None:
    proxy.chat(headers={"X-Session-Id": "before"})
    with looking(proxy) as events:
        assert next(events)["session"] == "before"


@pytest.mark.parametrize("over", ["user", "session"])
def test_whoever_is_forgotten_is_told_of_no_more(serve: Serve, over: str) -> None:
    proxy = serve('memory: {sessions: "memory:"}\n' + CONFIG)
    for user in ("ann", "bob"):
        proxy.chat(headers={"X-Session-Id": f"of {user}", "X-User-Id": user})
    path = "users/ann" if over == "user" else "sessions/of%20ann"
    assert proxy.client.delete(f"/v1/memory/{path}").status_code == 204
    with looking(proxy) as events:
        assert next(events)["user"] == "bob"


def test_who_is_forgotten_in_mid_turn_sees_its_end_and_it_is_kept_nowhere(
    serve: Serve, upstream: FakeUpstream
) -> None:
    upstream.says(HEAD, chunk(ROLE), chunk(delta(content="Well")), 0.7, chunk(DONE), END)
    proxy = serve('memory: {sessions: "memory:"}\n' + CONFIG)
    headers = {"X-Session-Id": "s", "X-User-Id": "ann"}
    with looking(proxy) as events:
        call = threading.Thread(target=proxy.chat, kwargs={"stream": True, "headers": headers})
        call.start()
        assert next(events)["state"] == "streaming"
        assert httpx2.delete(f"{proxy.root}/v1/memory/users/ann").status_code == 204
        assert next(events)["state"] == "done"
        call.join()
    assert not list(proxy.app.feed.newest("default")) and not list(proxy.app.traces.newest("default"))


def test_each_key_sees_its_own_tenant_s_turns(serve: Serve) -> None:
    proxy = serve(KEYS)
    with looking(proxy, "one") as events:
        for key in ("two", "one"):
            proxy.chat(headers={"Authorization": f"Bearer {key}", "X-Session-Id": f"of {key}"})
        assert next(events)["session"] == "of one"
    assert proxy.client.get("/v1/turns").status_code == 401
    assert proxy.client.get("/v1/turns", headers={"Authorization": "Bearer three"}).status_code == 403


def test_onlookers_do_not_hold_up_the_server_s_end(proxy: ProxyServer) -> None:
    with looking(proxy) as events:
        proxy.run(_drain(proxy))
        assert list(events) == []


async def _drain(proxy: ProxyServer) -> None:
    proxy.app.drain()


def test_the_command_shows_a_line_for_each(proxy: ProxyServer) -> None:
    proxy.chat(headers={"X-Session-Id": "room-\x1b[31m1".replace("\x1b", ""), "X-User-Id": "ann"})
    with preloaded.greeting("tap", "--url", proxy.root, env=os.environ) as (_, line):
        pass
    assert "done" in line and "ann" in line and "fake" in line


def test_the_command_says_why_not(proxy: ProxyServer, serve: Serve, tmp_path: Path) -> None:
    for url, said in (
        ("http://127.0.0.1:1", "with --url"),
        (serve(KEYS).root, "set TURNKEEPER_KEY to the secret"),
    ):
        done = preloaded.run("tap", "--url", url, folder=tmp_path, env=os.environ)
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("environ", "key"),
    [
        ({}, ""),
        ({"TURNKEEPER_KEY": "mine", "TURNKEEPER_KEYS": "a:one"}, "mine"),
        ({"TURNKEEPER_KEYS": "a:chats:chat, b:all"}, "all"),
        ({"TURNKEEPER_KEYS": "nonsense"}, ""),
    ],
)
def test_the_key_comes_from_the_environment(environ: dict[str, str], key: str) -> None:
    assert find_key(environ) == key


def test_a_line_is_one_line() -> None:
    event = Event(
        id="turn_1", request="r", session="s", user=None, turn_id=None, model=None, pipeline="default",
        state="degraded", status=200, code=None, degraded=("memory",),
        first_token_ms=None, duration_ms=1, at=0,
    )  # fmt: skip
    text = "".join(text for text, _ in event_line(event))
    assert "degraded" in text and text.endswith("memory")
