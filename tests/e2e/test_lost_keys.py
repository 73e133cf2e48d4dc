"""Forgetting a user while sessions cannot be read: what is deleted, what may remain, and how that ends."""

import base64
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests import preloaded
from tests.e2e.conftest import Address
from tests.page_visit import Visit
from tests.proxy_server import ProxyServer, Serve
from tests.waiting import until

CONFIG = """
memory:
  sessions: "${MEMORY_URL}"
  archive: {url: "${ARCHIVE}"}
  encryption: ["${NEW_KEY}"]
  window: {ttl: "${TTL:-30m}"}
upstreams: {main: {base_url: "practice:"}}
pipelines: {default: {upstreams: [main], request: []}}
"""
OLD, NEW = (base64.urlsafe_b64encode(letter * 32).decode() for letter in (b"o", b"n"))
ANN = "/v1/memory/users/ann"
LOST = ["lost/1", "lost-2"]


@pytest.fixture(params=["sqlite", "redis"])
def places(request: pytest.FixtureRequest, address: Address, tmp_path: Path) -> dict[str, str]:
    return {"MEMORY_URL": address(request.param), "ARCHIVE": f"sqlite:{tmp_path / 'archive.db'}"}


def say(proxy: ProxyServer, session: str, user: str = "ann") -> None:
    words = [{"role": "user", "content": "My word is scarecrow."}]
    assert proxy.chat(words, headers={"X-Session-Id": session, "X-User-Id": user}).status_code == 200
    assert until(lambda: proxy.app.gauges().queued == 0)


def losing(serve: Serve, **places: str) -> ProxyServer:
    """A server that has lost the key of some sessions, and can read one of ann's and one of bob's."""
    before = serve(CONFIG, **places, NEW_KEY=OLD)
    for session in LOST:
        say(before, session)
    proxy = serve(CONFIG, **places, NEW_KEY=NEW)
    say(proxy, "hers")
    say(proxy, "his", user="bob")
    return proxy


def unreadable(proxy: ProxyServer) -> list[str]:
    """What is told of the sessions that cannot be read: without the key, their ids are encrypted too."""
    listed = proxy.client.get(f"{ANN}/export").json()["unreadable_sessions"]
    assert not {*listed} & {*LOST}
    return listed


def test_it_is_said_which_sessions_may_hold_words_of_theirs_and_all_else_is_gone(
    serve: Serve, places: dict[str, str]
) -> None:
    proxy = losing(serve, **places)
    told = proxy.client.get(f"{ANN}/export").json()
    assert [one["id"] for one in told["sessions"]] == ["hers"]
    lost = unreadable(proxy)
    assert len({*lost}) == len(LOST)
    got = proxy.client.delete(ANN)
    assert got.status_code == 409
    error = got.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == "sessions_unreadable"
    assert lost[0] in error["message"]
    assert "DELETE /v1/memory/sessions/" in error["message"]
    assert got.json()["sessions"] == lost
    assert proxy.client.get("/v1/memory/sessions/hers").status_code == 404
    assert proxy.client.get("/v1/memory/sessions/his").status_code == 200
    told = proxy.client.get(f"{ANN}/export").json()
    assert (told["sessions"], told["turns"]) == ([], [])


def test_once_they_are_deleted_nothing_is_left_to_say(serve: Serve, places: dict[str, str]) -> None:
    proxy = losing(serve, **places)
    for session in proxy.client.delete(ANN).json()["sessions"]:
        assert proxy.client.delete(f"/v1/memory/sessions/{session.replace('/', '%2F')}").status_code == 204
    assert proxy.client.delete(ANN).status_code == 204
    assert "unreadable_sessions" not in proxy.client.get(f"{ANN}/export").json()


def test_once_they_expire_nothing_is_left_to_say(serve: Serve, places: dict[str, str]) -> None:
    proxy = losing(serve, **places, TTL="2s")
    assert proxy.client.delete(ANN).status_code == 409
    assert until(lambda: proxy.client.delete(ANN).status_code == 204)


def test_with_the_key_given_again_they_are_forgotten_as_well(serve: Serve, places: dict[str, str]) -> None:
    losing(serve, **places)
    proxy = serve(
        CONFIG.replace('"${NEW_KEY}"', '"${NEW_KEY}", "${OLD_KEY}"'), **places, NEW_KEY=NEW, OLD_KEY=OLD
    )
    assert proxy.client.delete(ANN).status_code == 204
    assert [one["id"] for one in proxy.client.get("/v1/memory/sessions").json()["data"]] == ["his"]


def test_turns_are_stored_although_the_key_of_an_earlier_erasure_is_lost(
    serve: Serve, places: dict[str, str]
) -> None:
    assert serve(CONFIG, **places, NEW_KEY=OLD).client.delete(ANN).status_code == 204
    proxy = serve(CONFIG, **places, NEW_KEY=NEW)
    say(proxy, "hers")
    assert proxy.client.get("/v1/memory/sessions/hers").status_code == 200


def test_of_very_many_the_first_are_told_in_words_and_all_in_a_list(
    serve: Serve, places: dict[str, str]
) -> None:
    before = serve(CONFIG, **places, NEW_KEY=OLD)
    names = sorted(f"lost-{number:03}" for number in range(150))
    with ThreadPoolExecutor(16) as clients:
        made = clients.map(lambda name: before.client.post("/v1/memory/sessions", json={"id": name}), names)
        assert {each.status_code for each in made} == {201}
    got = serve(CONFIG, **places, NEW_KEY=NEW).client.delete(ANN).json()
    assert len({*got["sessions"]}) == len(names)
    assert "150 sessions" in got["error"]["message"]
    assert len(got["error"]["message"]) < 1000


def test_a_terminal_and_the_page_say_it_too(serve: Serve, places: dict[str, str], tmp_path: Path) -> None:
    proxy = losing(serve, **places)
    lost = unreadable(proxy)
    (tmp_path / "turnkeeper.yaml").write_text(CONFIG)
    environ = {**os.environ, **places, "NEW_KEY": NEW}
    done = preloaded.run("forget", "ann", "--config", "turnkeeper.yaml", folder=tmp_path, env=environ)
    assert done.returncode == 1
    assert all(session in done.stderr for session in lost)
    assert "turnkeeper forget --session" in done.stderr
    visit = Visit(proxy)
    got = visit.post("/users/ann/forget", seen="/users/ann/forget")
    assert got.status_code == 409
    assert all(session in got.text for session in lost)


def test_a_session_of_another_version_is_memory_that_cannot_be_had(serve: Serve, tmp_path: Path) -> None:
    proxy = serve(CONFIG, MEMORY_URL=f"sqlite:{tmp_path / 'memory.db'}", ARCHIVE="", NEW_KEY="")
    say(proxy, "call")
    with closing(sqlite3.connect(tmp_path / "memory.db")) as connection, connection:
        connection.execute("UPDATE turnkeeper_sessions SET blob = ?, version = version + 1", (b"\x91\x07",))
    path = "/v1/memory/sessions/call"
    got = [proxy.client.get(f"{path}{part}") for part in ("", "/context", "/summaries", "/state")]
    got.append(proxy.client.put(f"{path}/state", json={"step": 1}))
    assert [(one.status_code, one.json()["error"]["code"]) for one in got] == [
        (503, "memory_unavailable")
    ] * 5
    page = Visit(proxy).get("/conversations/call")
    assert (page.status_code, "cannot be read" in page.text) == (503, True)
    assert proxy.client.delete(path).status_code == 204


def test_a_user_whose_facts_are_broken_is_listed_with_all_others(serve: Serve, tmp_path: Path) -> None:
    proxy = serve(CONFIG, MEMORY_URL=f"sqlite:{tmp_path / 'memory.db'}", ARCHIVE="", NEW_KEY="")
    say(proxy, "hers")
    for user in ("ann", "bob"):
        facts = f"/v1/memory/users/{user}/facts"
        assert proxy.client.post(facts, json={"text": f"Is called {user}."}).status_code == 201
    with closing(sqlite3.connect(tmp_path / "memory.db")) as connection, connection:
        broken = connection.execute(
            "UPDATE turnkeeper_facts SET blob = ? WHERE owner ="
            " (SELECT id FROM turnkeeper_people WHERE person = ?)",
            (b"\x91\x07", b"ann"),
        )
        assert broken.rowcount == 1
    assert until(lambda: len(proxy.client.get("/v1/memory/users").json().get("data", "")) == 2)
    listed = {each["id"]: each for each in proxy.client.get("/v1/memory/users").json()["data"]}
    assert (listed["ann"]["facts"], listed["bob"]["facts"]) == (None, 1)
    assert until(lambda: proxy.client.get("/v1/memory/users").json()["data"][0]["sessions"] == 1)
    exported = proxy.client.get(f"{ANN}/export").json()
    assert exported["unreadable"] == ["facts"]
    assert [turn["message"]["content"] for turn in exported["turns"]][:1] == ["My word is scarecrow."]
    page = Visit(proxy)
    assert "bob" in page.get("/users").text
    shown = page.get("/users/ann")
    assert (shown.status_code, "it is broken" in shown.text) == (200, True)
    assert "/conversations/hers" in shown.text
    assert proxy.client.delete(ANN).status_code == 204
    assert [each["id"] for each in proxy.client.get("/v1/memory/users").json()["data"]] == ["bob"]


def test_what_is_kept_under_a_lost_key_is_not_said_to_be_away(serve: Serve, places: dict[str, str]) -> None:
    before = serve(CONFIG, **places, NEW_KEY=OLD)
    assert before.client.post(f"{ANN}/facts", json={"text": "Has a dog."}).status_code == 201
    both = serve(CONFIG.replace('"${NEW_KEY}"', f'"{NEW}", "{OLD}"'), **places)
    assert [each["text"] for each in both.client.get(f"{ANN}/facts").json()["data"]] == ["Has a dog."]
    proxy = serve(CONFIG, **places, NEW_KEY=NEW)
    got = proxy.client.get(f"{ANN}/facts")
    assert got.status_code == 503
    assert "'memory.encryption'" in got.json()["error"]["message"]
    assert "memory.encryption" in Visit(proxy).get("/users/ann").text
