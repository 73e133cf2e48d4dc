"""The permanent log of a session outlives it, and only its own tenant can read it."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.long_call import LongCall, model, settle
from tests.long_call import config as long_call
from tests.page_visit import Visit, words
from tests.peers.fake_upstream import FakeUpstream
from tests.proxy_server import ProxyServer, Serve
from tests.waiting import awaited

CONFIG = """
keys: "${KEYS:-}"
memory:
  sessions: "${MEMORY_URL}"
  deadline: 5s
  window: {max_messages: 20, keep_messages: 10, ttl: "${TTL:-1s}"}
  archive: {keep: "${KEEP:-forever}"}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines: {default: {upstreams: [main], request: [restore_history]}}
"""
SESSIONS = "/v1/memory/sessions"
KEYS = "acme:secret-1,other:secret-2"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'memory.db'}"


@pytest.fixture
def proxy(serve: Serve, url: str) -> ProxyServer:
    return serve(CONFIG, MEMORY_URL=url)


def say(proxy: ProxyServer, *texts: str, session: str = "s1", key: str = "", **headers: str) -> None:
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    own = {"Authorization": f"Bearer {key}"} if key else {}
    got = proxy.chat(messages, headers={"X-Session-Id": session, **own, **headers})
    assert got.status_code == 200


def expired(proxy: ProxyServer, session: str = "s1", count: int = 2, **headers: Any) -> None:
    """Returns once all of a session is archived, and it is gone."""
    path = f"{SESSIONS}/{session}"
    awaited(lambda: len(log(proxy, session, **headers)) == count)
    awaited(lambda: proxy.client.get(path, **headers).status_code == 404)


def log(proxy: ProxyServer, session: str = "s1", **call: Any) -> list[dict[str, Any]]:
    return proxy.client.get(f"{SESSIONS}/{session}/turns", **call).json().get("data", [])


def test_an_expired_session_is_read_from_the_log_page_by_page(proxy: ProxyServer) -> None:
    say(proxy, "My dog is Rex", "Hello there.", "And I have a cat")
    expired(proxy, count=4)
    first = proxy.client.get(f"{SESSIONS}/s1/turns", params={"limit": 3}).json()
    assert [one["message"]["content"] for one in first["data"]] == [
        "My dog is Rex",
        "Hello there.",
        "And I have a cat",
    ]
    assert (first["has_more"], first["last"]) == (True, 3)
    rest = proxy.client.get(f"{SESSIONS}/s1/turns", params={"limit": 3, "after": first["last"]}).json()
    assert [(one["number"], one["message"]["role"]) for one in rest["data"]] == [(4, "assistant")]
    assert rest["has_more"] is False
    assert proxy.client.get(SESSIONS).json()["data"] == []
    say(proxy, "Anonymous", session="s2")
    expired(proxy, "s2")
    archived = proxy.client.get(SESSIONS, params={"archived": "true", "limit": 1}).json()
    assert ([one["id"] for one in archived["data"]], archived["has_more"]) == (["s1"], True)
    archived = proxy.client.get(SESSIONS, params={"archived": "true", "after": "s1"}).json()
    assert [one["id"] for one in archived["data"]] == ["s2"]


def test_the_page_leads_to_what_has_expired(proxy: ProxyServer) -> None:
    say(proxy, "My dog is <b>Rex</b>")
    expired(proxy)
    visit = Visit(proxy)
    assert '"/conversations/archive/all"' in visit.page("/conversations")
    assert '"/conversations/s1"' in visit.page("/conversations/archive/all")
    page = visit.page("/conversations/s1")
    assert "My dog is <b>Rex</b>" in words(page) and "Hello there." in words(page)
    assert "/edit/" not in page and '"/conversations/s1/delete"' not in page
    assert visit.get("/conversations/s1?from=2").status_code == 404
    assert visit.get("/conversations/none").status_code == 404


def test_nobody_reads_another_tenants_log(serve: Serve, url: str) -> None:
    proxy = serve(CONFIG, MEMORY_URL=url, KEYS=KEYS)
    say(proxy, "My dog is Rex", key="secret-1")
    one, other = ({"Authorization": f"Bearer secret-{n}"} for n in (1, 2))
    expired(proxy, headers=one)
    assert proxy.client.get(f"{SESSIONS}/s1/turns", headers=other).status_code == 404
    assert proxy.client.get(SESSIONS, params={"archived": "true"}, headers=other).json()["data"] == []
    assert proxy.client.get("/conversations/s1", headers=other).status_code == 404
    assert "s1" not in words(proxy.client.get("/conversations/archive/all", headers=other).text)
    assert "Rex" in words(proxy.client.get("/conversations/s1", headers=one).text)


def test_what_is_forgotten_leaves_the_log(proxy: ProxyServer) -> None:
    say(proxy, "My dog is Rex", **{"X-User-Id": "ann"})
    expired(proxy)
    assert proxy.client.delete("/v1/memory/users/ann").status_code == 204
    missing = proxy.client.get(f"{SESSIONS}/s1/turns")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "session_not_found")
    assert proxy.client.get(SESSIONS, params={"archived": "true"}).json()["data"] == []


def test_without_an_archive_it_is_said_what_to_set(serve: Serve, url: str) -> None:
    proxy = serve(CONFIG, MEMORY_URL=url, KEEP="off")
    for path in (f"{SESSIONS}/s1/turns", f"{SESSIONS}?archived=true"):
        got = proxy.client.get(path)
        assert (got.status_code, got.json()["error"]["code"]) == (404, "archive_off")
    assert proxy.client.get(f"{SESSIONS}/s1/turns?after=-1").status_code == 404
    assert Visit(proxy).get("/conversations/archive/all").status_code == 404


def test_a_bad_place_in_the_log_is_refused(proxy: ProxyServer) -> None:
    for query in ("after=-1", "after=x", "limit=0", "before=3"):
        assert proxy.client.get(f"{SESSIONS}/s1/turns?{query}").status_code == 400


def test_what_was_heard_is_in_the_log_though_it_was_locked_meanwhile(
    serve: Serve, upstream: FakeUpstream, url: str, tmp_path: Path
) -> None:
    upstream.script = model()
    archive = tmp_path / "archive.db"
    text = long_call(12, 4).replace("  deadline", f"  archive: {{url: 'sqlite:{archive}'}}\n  deadline")
    proxy = serve(text, MEMORY_URL=url)
    call = LongCall(proxy, upstream)
    call.turn()
    awaited(lambda: len(log(proxy, call.session)) == 2)
    whole = call.lines[-1]["content"]
    call.lines[-1]["content"] = heard = " ".join(whole.split()[:3])  # the caller interrupted it
    with closing(sqlite3.connect(archive, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for _ in range(12):
            call.turn()
            settle(proxy)
        other.execute("ROLLBACK")
    awaited(lambda: len(log(proxy, call.session)) == len(call.lines))
    assert log(proxy, call.session)[1]["message"]["content"] == heard
