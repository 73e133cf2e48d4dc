"""With encryption, no store contains the plain name of a session or a user."""

import asyncio
import base64
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest
import redis

from proxy.memory.stores.encryption import Encryption
from tests import preloaded
from tests.e2e.conftest import Address
from tests.long_call import stream_text
from tests.peers.fake_upstream import FakeUpstream, Received, Step, answer, completion, sse, stream_of
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import settle
from tests.waiting import awaited, until

CONFIG = """
memory:
  sessions: "${MEMORY_URL}"
  deadline: 2s
  call_pause: 100ms
  encryption: ["${NEW_KEY:-}", "${OLD_KEY:-}"]
  archive: {url: "${ARCHIVE_URL}"}
  window: {max_messages: 6, keep_messages: 2}
  summaries: {upstream: main, model: notes, timeout: 5s}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default:
    upstreams: [main]
    request: [repair_history, restore_history, inject_summaries, inject_last_call, inject_facts, recall]
"""
OLD, NEW = (base64.urlsafe_b64encode(letter * 32).decode() for letter in (b"o", b"n"))
SESSION, USER, GUEST = "session-4711-unmistakable", "ferdinand@unmistakable.example", "guest-unmistakable"
SESSIONS, ME = "/v1/memory/sessions", f"/v1/memory/users/{USER}"
NAMES = (SESSION, USER, GUEST, "second-unmistakable")
Place = dict[str, str]


@pytest.fixture(params=["sqlite", "redis", "postgresql"])
def place(request: pytest.FixtureRequest, address: Address, tmp_path: Path) -> Place:
    url = address(request.param)
    archive = f"sqlite:{tmp_path / 'archive.db'}" if request.param == "redis" else url
    return {"MEMORY_URL": url, "ARCHIVE_URL": archive}


@pytest.fixture(autouse=True)
def model(upstream: FakeUpstream) -> None:
    def reply(request: Received) -> Iterable[Step]:
        if request.json["model"] == "notes":
            return answer(completion("The user has scarecrows with the numbers 0 to 4; a guest says hello."))
        return sse(stream_of("I see", ", thank you."))

    upstream.script = reply


def say(proxy: ProxyServer, *texts: str, session: str = SESSION, user: str = USER, lines: Any = ()) -> str:
    messages = [*lines, *({"role": "user", "content": text} for text in texts)]
    got = proxy.chat(messages, headers={"X-Session-Id": session, "X-User-Id": user}, stream=True)
    assert got.status_code == 200, got.text
    assert "x-turnkeeper-degraded" not in got.headers
    settle(proxy)
    return stream_text(got.text)


def live(proxy: ProxyServer) -> None:
    """A life with memory: turns beyond the window, another speaker, facts, a profile, a second call."""
    for number in range(5):
        say(proxy, f"My scarecrow has the number {number}.")
    say(proxy, "Hello from a guest.", user=GUEST)
    assert proxy.client.post(f"{ME}/facts", json={"text": "Owns a scarecrow."}).status_code == 201
    profile = proxy.client.put(f"{ME}/profile", json={"text": "A farmer."})
    assert profile.is_success, profile.text
    assert proxy.client.put(f"{SESSIONS}/{SESSION}/state", json={"step": 3}).is_success
    say(proxy, "It is me again.", session="second-unmistakable")
    got = proxy.client.post(f"{SESSIONS}/{SESSION}/summaries", json={})
    assert got.is_success, got.text
    settle(proxy)


def check(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    """Everything works as if names were stored as they are."""
    listed = proxy.client.get(SESSIONS).json()["data"]
    assert {SESSION, "second-unmistakable"} <= {one["id"] for one in listed}
    archived = proxy.client.get(SESSIONS, params={"archived": "true"}).json()["data"]
    assert {SESSION, "second-unmistakable"} <= {one["id"] for one in archived}
    assert proxy.client.get(f"{SESSIONS}/{SESSION}/state").json() == {"step": 3}
    export = proxy.client.get(f"{ME}/export").json()
    assert {one["id"] for one in export["sessions"]} == {SESSION, "second-unmistakable"}
    assert {one["session_id"] for one in export["turns"]} == {SESSION, "second-unmistakable"}
    assert [one["text"] for one in export["facts"]] == ["Owns a scarecrow."]
    users = proxy.run(proxy.app.memory.archiving.archive.list_users("default"))
    assert {USER, GUEST} <= set(users)
    for query, source in ("scarecrow", SESSION), ("Who owns it?", None):
        asked = {"user": USER, "query": query}
        results = proxy.client.post("/v1/memory/search", json=asked).json()["results"]
        assert source in {one.get("session_id") for one in results}
    before = len(proxy.client.get(f"{SESSIONS}/{SESSION}").json()["contents"])
    first, second = (f"What about my scarecrow? ({before + number})" for number in (0, 1))
    say(proxy, first)
    say(proxy, second)
    prompts = [str(one.json["messages"]) for one in upstream.requests if one.json["model"] != "notes"]
    assert [first in prompt for prompt in prompts if second in prompt] == [True]
    assert len(proxy.client.get(f"{SESSIONS}/{SESSION}").json()["contents"]) == before + 4


# --- what is stored, byte by byte


def stored(place: Place) -> Iterator[bytes]:
    """All that the places of memory hold, as it lies there."""
    for url in set(place.values()):
        kind = url.partition(":")[0]
        yield from {"sqlite": files, "redis": redis_values, "postgresql": tables}[kind](url)


def files(url: str) -> Iterator[bytes]:
    path = Path(url.removeprefix("sqlite:"))
    for each in path.parent.glob(f"{path.name}*"):
        yield each.read_bytes()


def redis_values(url: str) -> Iterator[bytes]:
    with closing(redis.Redis.from_url(url)) as client:
        readers: dict[bytes, Callable[[Any], Any]] = {
            b"string": client.get,
            b"hash": client.hgetall,
            b"list": lambda key: client.lrange(key, 0, -1),
            b"zset": lambda key: client.zrange(key, 0, -1),
            b"set": client.smembers,
        }
        for key in client.keys("*"):
            kind = client.type(key)
            if kind == b"none":  # it has expired meanwhile
                continue
            value = readers[kind](key)
            parts = [*value, *value.values()] if isinstance(value, dict) else value
            yield key + b"\n" + (parts if isinstance(parts, bytes) else b"\n".join(parts))


def tables(url: str) -> Iterator[bytes]:
    async def dump() -> list[bytes]:
        connection = await asyncpg.connect(url)
        (schema,) = parse_qs(urlsplit(url).query)["search_path"]
        try:
            names = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", schema)
            assert len(names) > 8
            rows = [row for (name,) in names for row in await connection.fetch(f"SELECT * FROM {name}")]
            return [each if isinstance(each, bytes) else str(each).encode() for row in rows for each in row]
        finally:
            await connection.close()

    yield from asyncio.run(dump())


def plain_names(place: Place) -> set[str]:
    everything = [*stored(place)]
    assert sum(map(len, everything)) > 1000
    return {name for name in NAMES for one in everything if name.encode() in one}


def moved_into_the_file(place: Place) -> None:
    for url in set(place.values()):
        if url.startswith("sqlite:"):
            with closing(sqlite3.connect(url.removeprefix("sqlite:"))) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def encrypting(serve: Serve, place: Place, upstream: FakeUpstream, *keys: str) -> ProxyServer:
    named = dict(zip(("NEW_KEY", "OLD_KEY"), keys, strict=False))
    return serve(CONFIG, **place, **named, UPSTREAM_BASE_URL=upstream.url)


def test_no_store_has_a_name_as_it_is(serve: Serve, place: Place, upstream: FakeUpstream) -> None:
    proxy = encrypting(serve, place, upstream, OLD)
    live(proxy)
    assert plain_names(place) == set()
    moved_into_the_file(place)
    assert plain_names(place) == set()
    check(proxy, upstream)
    assert plain_names(place) == set()


def test_redis_alone_has_no_name_as_it_is(serve: Serve, address: Address, upstream: FakeUpstream) -> None:
    place = {"MEMORY_URL": address("redis")}
    config = CONFIG.replace('  archive: {url: "${ARCHIVE_URL}"}\n', "").replace(", recall]", "]")
    proxy = serve(config, **place, NEW_KEY=OLD, UPSTREAM_BASE_URL=upstream.url)
    live(proxy)
    assert proxy.app.memory.archiving is None
    assert [one["text"] for one in proxy.client.get(f"{ME}/export").json()["facts"]] == ["Owns a scarecrow."]
    assert awaited(lambda: proxy.client.get(f"{ME}/export").json().get("calls"))
    assert plain_names(place) == set()


def test_without_encryption_names_are_stored_as_they_are(
    serve: Serve, place: Place, upstream: FakeUpstream
) -> None:
    proxy = encrypting(serve, place, upstream)
    live(proxy)
    assert plain_names(place) == set(NAMES)


def test_names_outlive_a_restart_and_a_change_of_keys(
    serve: Serve, place: Place, upstream: FakeUpstream
) -> None:
    live(encrypting(serve, place, upstream, OLD))
    for keys in ([OLD], [OLD, NEW], [NEW, OLD]):
        check(encrypting(serve, place, upstream, *keys), upstream)
    assert plain_names(place) == set()


def test_two_servers_whose_keys_are_being_changed_share_their_names(
    serve: Serve, place: Place, upstream: FakeUpstream
) -> None:
    before, after = (encrypting(serve, place, upstream, *keys) for keys in ([OLD, NEW], [NEW, OLD]))
    live(before)
    for number in range(3):
        for proxy in (after, before):
            say(proxy, f"I am here, {number} {proxy is after}.", session="shared", user="bob")
            check(proxy, upstream)
    contents = before.client.get(f"{SESSIONS}/shared").json()["contents"]
    assert len(contents) == 12
    assert after.client.get(f"{SESSIONS}/shared").json()["contents"] == contents


def test_what_was_stored_with_plain_names_goes_on(serve: Serve, place: Place, upstream: FakeUpstream) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Encryption, "names", lambda *_: None)
        proxy = encrypting(serve, place, upstream, OLD)
        live(proxy)
        assert plain_names(place) == set(NAMES)
        proxy.__exit__()
    proxy = encrypting(serve, place, upstream, OLD)
    check(proxy, upstream)
    say(proxy, "A new call.", session="third", user="bob")
    assert {one["id"] for one in proxy.client.get(SESSIONS).json()["data"]} >= {SESSION, "third"}
    created = proxy.client.post(SESSIONS, json={"id": SESSION})
    assert created.status_code == 409
    check(encrypting(serve, place, upstream, NEW, OLD), upstream)
    if place["ARCHIVE_URL"] != place["MEMORY_URL"]:  # sessions leave their plain names when they expire
        assert until(lambda: plain_names({"": place["ARCHIVE_URL"]}) == set())


@pytest.mark.parametrize("old", [True, False], ids=["plain names", "encrypted names"])
def test_who_is_forgotten_is_gone(serve: Serve, place: Place, upstream: FakeUpstream, *, old: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if old:
            patch.setattr(Encryption, "names", lambda *_: None)
        proxy = encrypting(serve, place, upstream, OLD)
        live(proxy)
        proxy.__exit__()
    proxy = encrypting(serve, place, upstream, NEW, OLD)
    say(proxy, "Hello.", session="others", user="bob")
    assert proxy.client.delete(ME).status_code == 204
    export = proxy.client.get(f"{ME}/export").json()
    assert (export["sessions"], export["turns"], export["facts"]) == ([], [], [])
    assert [one["id"] for one in proxy.client.get(SESSIONS).json()["data"]] == ["others"]
    assert USER not in proxy.run(proxy.app.memory.archiving.archive.list_users("default"))


def test_the_command_line_knows_names(
    serve: Serve, place: Place, upstream: FakeUpstream, tmp_path: Path
) -> None:
    proxy = encrypting(serve, place, upstream, OLD)
    live(proxy)
    (tmp_path / "turnkeeper.yaml").write_text(CONFIG)
    environ = {**os.environ, **place, "NEW_KEY": OLD, "UPSTREAM_BASE_URL": upstream.url}

    def run(*words: str) -> str:
        done = preloaded.run(*words, "--config", "turnkeeper.yaml", folder=tmp_path, env=environ)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert SESSION in run("export", USER)
    run("forget", USER)
    assert until(lambda: proxy.client.get(f"{SESSIONS}/{SESSION}").status_code == 404)
    run("forget", "--session", "second-unmistakable")
    assert awaited(lambda: proxy.client.get(SESSIONS).json()["data"] == [])
