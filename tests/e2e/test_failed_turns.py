"""A failed turn leaves memory unchanged, and creates no session."""

import pytest

from tests.peers.fake_upstream import (
    DONE,
    HEAD,
    RESET,
    ROLE,
    FakeUpstream,
    Step,
    answer,
    chunk,
    delta,
    sse,
    stream_of,
)
from tests.proxy_server import Serve
from tests.remembering import call, stored_entries, texts, user

CONFIG = """
memory: {sessions: "${MEMORY_URL}", deadline: 5s}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", retries: 0}}
pipelines:
  default:
    upstreams: [main]
    request: [repair_history, restore_history, trim_history: {max_tokens: 1000}]
    keep_alive: 100ms
"""
FAILED: dict[str, list[Step]] = {
    "an error behind a keep-alive": [0.4, *answer({"error": {"message": "x"}}, 500)],
    "nothing but a filter's finish": sse(ROLE + delta(finish="content_filter") + DONE),
    "a break behind thoughts": [HEAD, chunk(ROLE + delta(reasoning_content="hm")), 0.1, RESET],
    "a status": answer({"error": {"message": "x"}}, 500),
    "words that are blank": sse(ROLE + delta(content=" ") + delta(finish="stop") + DONE),
}


@pytest.mark.parametrize("name", FAILED)
def test_a_first_turn_that_failed_leaves_no_session(serve: Serve, upstream: FakeUpstream, name: str) -> None:
    proxy = serve(CONFIG)
    upstream.says(*FAILED[name])
    call(proxy, user("Hi"), stream=True, user="ann")
    assert stored_entries(proxy) == []
    assert proxy.client.get("/v1/memory/sessions/s1").status_code == 404
    assert proxy.client.get("/v1/memory/sessions").json()["data"] == []


@pytest.mark.parametrize("name", FAILED)
def test_a_later_turn_that_failed_leaves_it_as_it_was(
    serve: Serve, upstream: FakeUpstream, name: str
) -> None:
    proxy = serve(CONFIG)
    upstream.says(*sse(stream_of("One.")))
    call(proxy, user("First"), stream=True)
    assert len(stored_entries(proxy)) == 2
    before = proxy.client.get("/v1/memory/sessions/s1").json()
    upstream.says(*FAILED[name])
    call(proxy, user("First"), user("Second"), stream=True, model="another")
    assert len(stored_entries(proxy)) == 2
    assert proxy.client.get("/v1/memory/sessions/s1").json() == before
    upstream.says(*sse(stream_of("Two.")))
    call(proxy, user("First"), {"role": "assistant", "content": "One."}, user("Second"), stream=True)
    assert [text for _, text in texts(stored_entries(proxy))] == ["First", "One.", "Second", "Two."]
