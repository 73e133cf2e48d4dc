"""Turns that are kept for the page on the Redis of the sessions: each host shows those of all."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest
import redis

from tests.e2e.test_hosts import Hosts, start
from tests.page_visit import Visit, words
from tests.peers import redis_server
from tests.peers.fake_upstream import FakeUpstream
from tests.serving_process import ServingProcess
from tests.waiting import awaited, until

__all__ = ["start"]
KEY = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
CONFIG = """
listen: {port: "${PORT}", drain: 10ms}
memory: {sessions: "${MEMORY_URL}", deadline: 1s, archive: {keep: "off"}, encryption: ["KEY"]}
traces: {keep: 5, content: true}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", model: one}}
pipelines: {default: {upstreams: [main], request: [repair_history]}}
""".replace("KEY", KEY)


class Browser(Visit):
    def __init__(self, serving: ServingProcess) -> None:
        self.client = httpx2.Client(base_url=serving.root, timeout=60, verify=False)

    def turns(self) -> list[str]:
        """The turns that the live page leads to, the newest first."""
        return re.findall(r'href="(/turns/[^"?]+)', self.page("/"))


@pytest.fixture(params=["redis", "redis+cluster"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with ExitStack() as started:
        if request.param == "redis":
            yield started.enter_context(redis_server.single(tmp_path)).url
        else:
            first = started.enter_context(redis_server.cluster(tmp_path))[0]
            yield f"redis+cluster://127.0.0.1:{first.port}"


@pytest.fixture
def single(tmp_path: Path) -> Iterator[str]:
    with redis_server.single(tmp_path) as server:
        yield server.url


def talk(host: ServingProcess, text: str, session: str, user: str = "ann") -> None:
    assert host.chat(text, session, user=user).status_code == 200


def test_a_turn_of_a_host_that_has_died_is_shown_and_run_again_by_another(
    start: Hosts, url: str, upstream: FakeUpstream
) -> None:
    dying, other = start(url, 2, CONFIG)
    talk(dying, "Where is my zebra?", "s-1")
    talk(dying, "And my giraffe?", "s-1")
    browser = Browser(other)
    newest, first = awaited(lambda: turns if len(turns := browser.turns()) == 2 else None)
    dying.kill()
    (later,) = start(url, 1, CONFIG)
    for host in (other, later):
        browser = Browser(host)
        assert browser.turns() == [newest, first]
        page = words(browser.page(first))
        assert "Where is my zebra?" in page and "Hello there." in page and "repair_history" in page
        assert newest in browser.page(first), "the turn after it"
        assert first in browser.page("/conversations/s-1")
        assert "Where is my zebra?" in words(browser.page("/live"))
        asked = len(upstream.requests)
        page = words(browser.post(f"{first}/run", seen=first, yaml="request: []").text)
        assert len(upstream.requests) == asked + 1 and "Its prompt has the same messages." in page
        assert "against what was sent" in words(
            browser.post(
                "/conversations/s-1/replay",
                seen="/conversations/s-1/replay",
                yaml="request:\n  - system_prompt: {text: Be brief., mode: replace}\n",
            ).text
        )


@pytest.mark.parametrize("path", ["sessions/s-gone", "users/ann"])
def test_what_is_forgotten_at_one_host_is_kept_at_none(start: Hosts, url: str, path: str) -> None:
    here, there = start(url, 2, CONFIG)
    talk(here, "Where is my zebra?", "s-gone")
    talk(there, "Where is my giraffe?", "s-stays", "bob")
    browsers = [Browser(here), Browser(there)]
    for browser in browsers:
        assert until(lambda browser=browser: len(browser.turns()) == 2)
    (gone,) = {turn for turn in browsers[0].turns() if "zebra" in browsers[0].page(turn)}
    exported = there.client.get("/v1/memory/users/ann/export").json()["kept_turns"]
    assert [each["messages"][-1]["content"] for each in exported] == ["Where is my zebra?"]
    assert there.client.delete(f"/v1/memory/{path}").status_code in {200, 204}
    for browser in browsers:
        assert len(browser.turns()) == 1
        assert browser.get(gone).status_code == 404
        assert "giraffe" in browser.page(browser.turns()[0])


def test_they_are_as_many_as_the_setting_says_expire_and_show_nothing_where_encryption_is_on(
    start: Hosts, single: str
) -> None:
    hosts = start(single, 2, CONFIG)
    for number in range(6):
        for host in hosts:
            talk(host, f"Where is zebra {number}?", f"s-{number}-secret", "ann-secret")
    browser = Browser(hosts[0])
    assert until(lambda: "zebra 5" in words(browser.page("/")))
    store = redis.Redis.from_url(single)
    assert until(lambda: store.keys("*{!default}:ids"))
    (index,) = store.keys("*{!default}:ids")
    turns = index[:-3] + b"turns"
    assert until(lambda: store.zcard(index) == 5 and len(store.hgetall(turns)) == 5 * 3 + 1)
    parts = store.hgetall(turns)
    size = int(parts.pop(b"size"))
    assert size == sum(len(part) for field, part in parts.items() if not field.endswith(b":names"))
    for key in store.keys("*{!default}*"):
        assert 0 < store.ttl(key) <= 86_400
    for name in ("zebra", "secret", "Hello there"):
        assert not any(name.encode() in part for pair in store.hgetall(turns).items() for part in pair)


def test_what_no_store_may_hold_stays_in_the_process(start: Hosts, single: str) -> None:
    config = CONFIG.replace(f'encryption: ["{KEY}"]', "redact: {kinds: [email]}")
    here, there = start(single, 2, config)
    talk(here, "I am a zebra, z@zoo.example", "s-1")
    browser = Browser(there)
    assert until(lambda: len(browser.turns()) == 1)
    store = redis.Redis.from_url(single)
    (key,) = store.keys("*{!default}:turns")
    assert not any(b"zoo" in value for value in store.hgetall(key).values())
    assert "zebra" not in browser.page(browser.turns()[0])
    assert "zebra" in Browser(here).page(browser.turns()[0])


def test_turns_of_one_moment_are_one_command(start: Hosts, single: str) -> None:
    (host,) = start(single, 1, CONFIG)
    with redis.Redis.from_url(single) as store, ThreadPoolExecutor() as pool:
        list(pool.map(lambda number: host.chat(f"Hi {number}"), range(10)))
        assert until(lambda: store.hlen(store.keys("*{!default}:turns")[0]) == 16 if store.keys("*!*") else 0)
        # Each command that adds asks once how many there are. Turns without a session write nothing else.
        assert store.info("commandstats")["cmdstat_zcard"]["calls"] < 5


@pytest.mark.parametrize("path", ["sessions/s-1", "users/ann"])
def test_what_a_call_replays_of_what_was_forgotten_is_kept_at_no_host(
    start: Hosts, single: str, path: str
) -> None:
    here, there = start(single, 2, CONFIG)
    browser = Browser(there)
    window = [{"role": "user", "content": "Where is my zebra?"}]

    def say(turns: int) -> None:
        here.client.post(
            "/v1/chat/completions",
            json={"model": "one", "messages": window},
            headers={"X-Session-Id": "s-1", "X-User-Id": "ann"},
        ).raise_for_status()
        assert until(lambda: len(browser.turns()) == turns)

    say(1)
    assert here.client.delete(f"/v1/memory/{path}").status_code == 204
    for number in range(1, 4):
        window += {"role": "assistant", "content": "Hi."}, {"role": "user", "content": f"No {number}"}
        say(number)
    assert until(lambda: not any("zebra" in browser.page(turn) for turn in browser.turns()))


def test_what_a_guest_said_is_forgotten_in_the_turns_of_others(start: Hosts, single: str) -> None:
    here, there = start(single, 2, CONFIG)

    def pages(host: ServingProcess) -> list[str]:
        browser = Browser(host)
        return [browser.page(turn) for turn in browser.turns()]

    talk(here, "Hello there.", "s-1", "bob")
    talk(here, "Where is my zebra?", "s-1", "eve")
    window = ["Hello there.", "Where is my zebra?", "And my giraffe?"]
    here.client.post(
        "/v1/chat/completions",
        json={"model": "one", "messages": [{"role": "user", "content": text} for text in window]},
        headers={"X-Session-Id": "s-1", "X-User-Id": "bob"},
    ).raise_for_status()
    for host in (here, there):
        assert until(lambda host=host: len(shown := pages(host)) == 3 and "zebra" in shown[0])
    assert there.client.delete("/v1/memory/users/eve").status_code == 204
    for host in (here, there):
        assert until(lambda host=host: len(shown := pages(host)) == 2 and "zebra" not in str(shown))
