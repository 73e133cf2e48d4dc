"""What no call waits for has seconds: a Redis too slow for calls is read and written by who manages it."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.page_visit import Visit
from tests.peers.redis_server import LOOPBACK, RedisServer
from tests.peers.relay import Relay
from tests.proxy_server import ProxyServer, Serve
from tests.waiting import until

CONFIG = """
memory: {sessions: "${MEMORY_URL}", archive: {url: "${ARCHIVE}"}}
upstreams: {main: {base_url: "practice:"}}
pipelines: {default: {upstreams: [main], request: []}}
"""
AWAY = 0.08
"""Seconds by which each reply is late: more than a call waits for memory."""
SESSIONS = "/v1/memory/sessions"


@pytest.fixture
def managed(serve: Serve, tmp_path: Path) -> Iterator[ProxyServer]:
    """A server that holds one session of ann's, and whose Redis has just become slow."""
    with contextlib.closing(RedisServer(tmp_path)) as server, Relay(server.port) as relay:
        url = f"redis://{LOOPBACK}:{relay.port}"
        proxy = serve(CONFIG, MEMORY_URL=url, ARCHIVE=f"sqlite:{tmp_path / 'archive.db'}")
        said = {"id": "hers", "user": "ann", "contents": [{"role": "user", "content": "Hello?"}]}
        assert proxy.client.post(SESSIONS, json=said).status_code == 201
        assert until(lambda: proxy.app.gauges().queued == 0)
        relay.delay = AWAY
        yield proxy


def test_sessions_are_made_and_their_state_is_kept(managed: ProxyServer) -> None:
    asked = managed.client
    assert asked.post(SESSIONS, json={"id": "new"}).status_code == 201
    assert asked.put(f"{SESSIONS}/new/state", json={"step": 1}).status_code == 200
    assert asked.patch(f"{SESSIONS}/new/state", json={"seat": "4A"}).json() == {"step": 1, "seat": "4A"}
    assert asked.get(f"{SESSIONS}/new/state").json() == {"step": 1, "seat": "4A"}
    assert asked.get(f"{SESSIONS}/new/summaries").json()["data"] == []
    assert asked.get(f"{SESSIONS}/none/state").status_code == 404


def test_what_an_agent_has_lived_through_is_kept_and_listed(managed: ProxyServer) -> None:
    episodes = "/v1/memory/agents/nova/episodes"
    lived = {"interaction_type": "user_message", "content": "Hello?"}
    assert managed.client.post(episodes, json=lived).status_code == 201
    assert [one["content"] for one in managed.client.get(episodes).json()["data"]] == ["Hello?"]


def test_a_person_is_exported_and_forgotten(managed: ProxyServer) -> None:
    told = managed.client.get("/v1/memory/users/ann/export")
    assert [one["id"] for one in told.json()["sessions"]] == ["hers"]
    assert managed.client.delete("/v1/memory/users/ann").status_code == 204
    assert managed.client.get(SESSIONS).json()["data"] == []


def test_the_page_shows_a_conversation_and_lets_a_line_be_put_right(managed: ProxyServer) -> None:
    visit = Visit(managed)
    page = "/conversations/hers"
    assert "Hello?" in visit.page(page)
    edit = f"{page}/edit/0"
    shown = re.search(r'name="shown" value="([^"]*)"', visit.page(edit))
    assert shown
    assert visit.post(edit, seen=edit, shown=shown[1], text="Goodbye.").status_code in {200, 303}
    assert "Goodbye." in visit.page(page)
