"""A user who is forgotten during a turn leaves nothing that the turn could store."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from tests.e2e.conftest import Address
from tests.e2e.test_speakers import settle
from tests.peers.fake_upstream import FakeUpstream, Received, Step, sse, stream_of
from tests.peers.scripted_model import calls
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import assistant_message, user
from tests.waiting import until

CONFIG = """
memory: {sessions: "${MEMORY_URL}", deadline: 5s, call_pause: 100ms}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default:
    upstreams: [main]
    tools: [memory_store]
    request: [repair_history, restore_history, inject_last_call]
"""
SECRET = "My secret town is Mango."
Ask = Callable[..., Any]


@pytest.fixture(params=["sqlite", "redis", "postgresql"])
def proxy(
    serve: Serve, upstream: FakeUpstream, address: Address, request: pytest.FixtureRequest
) -> ProxyServer:
    upstream.script = lambda _: sse(stream_of("Fine."))
    return serve(CONFIG, MEMORY_URL=address(request.param))


def ask(proxy: ProxyServer, name: str | None, *messages: dict[str, Any], session: str = "room") -> None:
    headers = {"X-Session-Id": session} | ({"X-User-Id": name} if name else {})
    assert proxy.chat(list(messages), headers=headers, stream=True).status_code == 200


def named(message: dict[str, Any], name: str) -> dict[str, Any]:
    return {**message, "metadata": {"user": name}}


def forget_while_answering(
    proxy: ProxyServer,
    upstream: FakeUpstream,
    forgotten: str,
    turn: Callable[[], None],
    answer: Callable[[], Iterator[Step]] = lambda: iter(sse(stream_of("Fine."))),
) -> None:
    """The turn, which is answered once the user is forgotten."""
    asked, is_forgotten = Event(), Event()

    def script(received: Received) -> Iterator[Step]:
        if not asked.is_set():
            asked.set()
            is_forgotten.wait(30)
            return answer()
        return iter(sse(stream_of("Fine.")))

    upstream.script = script
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(turn)
        assert asked.wait(30)
        assert proxy.client.delete(f"/v1/memory/users/{forgotten}").status_code == 204
        is_forgotten.set()
        running.result()
    settle(proxy)


def exported(proxy: ProxyServer, name: str) -> str:
    """What memory has of a user."""
    export = proxy.client.get(f"/v1/memory/users/{name}/export").json()
    del export["kept_turns"]
    return json.dumps(export)


def stored(proxy: ProxyServer, name: str) -> str:
    """All that memory shows of the room and of a user."""
    return proxy.client.get("/v1/memory/sessions/room").text + exported(proxy, name)


def test_the_first_words_of_a_session_that_had_no_user(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    ask(proxy, None, user("Hello there."))
    settle(proxy)
    window = user("Hello there."), assistant_message("Fine."), user(SECRET)
    forget_while_answering(proxy, upstream, "eve", lambda: ask(proxy, "eve", *window))
    assert until(lambda: "Mango" not in stored(proxy, "eve"), 5)


def test_words_of_a_session_that_was_made_anew_meanwhile(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    def answer() -> Iterator[Step]:
        made = {"id": "room", "user": "eve"}
        assert proxy.client.post("/v1/memory/sessions", json=made).status_code == 201
        return iter(sse(stream_of("Fine.")))

    forget_while_answering(proxy, upstream, "eve", lambda: ask(proxy, "eve", user(SECRET)), answer)
    assert until(lambda: "Mango" not in stored(proxy, "eve"), 5)


def test_words_that_anothers_request_brings_along(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    first = named(user("Hello there, this is Bob."), "bob")
    ask(proxy, "bob", first)
    settle(proxy)
    window = first, assistant_message("Fine."), named(user(SECRET), "eve"), named(user("And you?"), "bob")
    forget_while_answering(proxy, upstream, "eve", lambda: ask(proxy, "bob", *window))
    assert until(lambda: "Mango" not in stored(proxy, "eve"), 5)
    assert "this is Bob" in stored(proxy, "bob")


def test_what_the_next_call_of_another_is_told(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    talk = [
        user("Hello there, this is Bob."),
        assistant_message("Fine."),
        user(SECRET),
        assistant_message("Fine."),
        user("Jazz, please."),
    ]
    for end, name in ((1, "bob"), (3, "eve"), (5, "bob")):
        ask(proxy, name, *talk[:end])
    settle(proxy)
    later = [user("I am back.")]
    assert until(lambda: "Mango" in exported(proxy, "bob"))
    forget_while_answering(proxy, upstream, "eve", lambda: ask(proxy, "bob", *later, session="later"))
    ask(proxy, "bob", *later, assistant_message("Fine."), user("And now?"), session="later")
    assert "Mango" not in str(upstream.last.json["messages"])


def test_what_the_model_stores_by_a_tool(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    ask(proxy, "eve", user("Hello there."))
    settle(proxy)
    window = user("Hello there."), assistant_message("Fine."), user(SECRET)

    def answer() -> Iterator[Step]:
        return iter(calls("memory_store", text="The secret town of the user is Mango.", category="core"))

    forget_while_answering(proxy, upstream, "eve", lambda: ask(proxy, "eve", *window), answer)
    assert until(lambda: "Mango" not in stored(proxy, "eve"), 5)


def test_words_of_a_user_under_the_platforms_name(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    words = named(user(SECRET), "eve-on-the-line")
    forget_while_answering(proxy, upstream, "eve-on-the-line", lambda: ask(proxy, "eve", words))
    assert until(lambda: "Mango" not in stored(proxy, "eve"), 5)
