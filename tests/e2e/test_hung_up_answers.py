"""An answer whose client left before its end: the caller broke in, however exactly it is replayed."""

from typing import Any

import pytest

from tests.e2e.conftest import Address
from tests.peers.fake_upstream import CLOSE, HANG, HEAD, ROLE, FakeUpstream, chunk, delta, sse, stream_of
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import CONFIG, assistant_message, call, stored_entries, user

HEARD = "Why did the scarecrow"
MARKED = f"{HEARD} [interrupted]"
JOKE, STOP, MORE = user("A joke, please."), user("Stop."), user("Another.")


@pytest.fixture(params=["sqlite", "postgresql", "redis", "memory"])
def remembering(request: pytest.FixtureRequest, address: Address, serve: Serve) -> ProxyServer:
    return serve(CONFIG, MEMORY_URL=address(request.param))


@pytest.fixture
def proxy(serve: Serve) -> ProxyServer:
    return serve(CONFIG)


def hang_up(proxy: ProxyServer, upstream: FakeUpstream, *window: dict[str, Any]) -> None:
    """Asks for an answer, and leaves before it has ended."""
    upstream.says(HEAD, chunk(ROLE + delta(content=HEARD)), HANG)
    body = {"model": "m", "stream": True, "messages": list(window)}
    with proxy.client.stream(
        "POST", "/v1/chat/completions", json=body, headers={"X-Session-Id": "s1"}
    ) as got:
        next(got.iter_raw())
    assert upstream.last.closed.wait(10)
    stored_entries(proxy)
    upstream.script = lambda _: sse(stream_of("All right."))


def prompt(proxy: ProxyServer, upstream: FakeUpstream, *window: dict[str, Any]) -> list[Any]:
    """What the model is shown of a turn."""
    call(proxy, *window, stream=True)
    stored_entries(proxy)
    return [message["content"] for message in upstream.last.json["messages"]]


def interruptions(proxy: ProxyServer) -> list[tuple[Any, ...]]:
    answers = [entry for entry in stored_entries(proxy) if entry.role == "assistant"]
    return [(entry.content, entry.interrupted, entry.original) for entry in answers]


def test_an_answer_that_is_replayed_as_it_was_relayed_is_marked(
    remembering: ProxyServer, upstream: FakeUpstream
) -> None:
    hang_up(remembering, upstream, JOKE)
    assert interruptions(remembering) == [(HEARD, True, None)]
    window = [JOKE, assistant_message(HEARD), STOP]
    shown = [JOKE["content"], MARKED, STOP["content"]]
    assert prompt(remembering, upstream, *window) == shown
    assert prompt(remembering, upstream, *window, assistant_message("All right."), MORE)[:3] == shown
    assert interruptions(remembering)[0] == (HEARD, True, None)
    contents = remembering.client.get("/v1/memory/sessions/s1").json()["contents"]
    assert contents[1]["metadata"]["interrupted"] is True


def test_it_is_marked_where_memory_brings_it_back(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    hang_up(proxy, upstream, JOKE)
    assert prompt(proxy, upstream, STOP) == [JOKE["content"], MARKED, STOP["content"]]


def test_where_less_is_replayed_the_rest_was_not_heard(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    hang_up(proxy, upstream, JOKE)
    shown = prompt(proxy, upstream, JOKE, assistant_message("Why did"), STOP)
    assert shown[1] == "Why did [interrupted here; the caller did not hear: the scarecrow]"
    assert interruptions(proxy)[0] == ("Why did", True, HEARD)


def test_the_whole_answer_to_the_same_request_takes_its_place(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    hang_up(proxy, upstream, JOKE)
    prompt(proxy, upstream, JOKE)
    assert interruptions(proxy) == [("All right.", False, None)]
    assert prompt(proxy, upstream, JOKE, assistant_message("All right."), STOP)[1] == "All right."


def test_a_client_that_leaves_behind_the_finish_reason_has_interrupted_nothing(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    upstream.says(HEAD, chunk(ROLE + delta(content=HEARD) + delta(finish="stop")), HANG)
    body = {"model": "m", "stream": True, "messages": [JOKE]}
    with proxy.client.stream(
        "POST", "/v1/chat/completions", json=body, headers={"X-Session-Id": "s1"}
    ) as got:
        assert b'"stop"' in next(got.iter_raw())
    assert upstream.last.closed.wait(10)
    assert interruptions(proxy) == [(HEARD, False, None)]


def test_an_answer_that_the_model_broke_off_was_interrupted_by_nobody(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    upstream.says(HEAD, chunk(ROLE + delta(content=HEARD)), CLOSE)
    call(proxy, JOKE, stream=True)
    assert interruptions(proxy) == [(HEARD, False, None)]
    upstream.script = lambda _: sse(stream_of("All right."))
    assert prompt(proxy, upstream, JOKE, assistant_message(HEARD), STOP)[1] == HEARD
