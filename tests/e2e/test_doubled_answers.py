"""An answer that an engine commits twice, spelt a little otherwise: it reaches the model once, and memory."""

from typing import Any

import pytest

from tests.peers.fake_upstream import FakeUpstream, sse, stream_of
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import CONFIG, assistant_message, call, stored_entries, user

ANSWER = "We are open until six today."
FIRST, NEXT, LAST = user("Are you open?"), user("And tomorrow?"), user("Thank you.")
SPELT = [ANSWER, f"{ANSWER}\n", f" {ANSWER}", ANSWER.replace(" ", "  "), "We are open\nuntil six today. "]
SPELT.append(ANSWER.upper())


@pytest.fixture
def proxy(serve: Serve, upstream: FakeUpstream) -> ProxyServer:
    upstream.script = lambda _: sse(stream_of(ANSWER))
    return serve(CONFIG)


def prompt(proxy: ProxyServer, upstream: FakeUpstream, *window: dict[str, Any]) -> list[str]:
    """What the model is shown of a turn."""
    call(proxy, *window, stream=True)
    stored_entries(proxy)
    return [" ".join(message["content"].split()) for message in upstream.last.json["messages"]]


@pytest.mark.parametrize("one", SPELT)
@pytest.mark.parametrize("other", SPELT)
def test_a_doubled_answer_is_told_once(
    proxy: ProxyServer, upstream: FakeUpstream, one: str, other: str
) -> None:
    call(proxy, FIRST, stream=True)
    stored_entries(proxy)
    window = [FIRST, assistant_message(one), assistant_message(other), NEXT]
    assert prompt(proxy, upstream, *window) == [FIRST["content"], ANSWER, NEXT["content"]]
    assert [entry.text for entry in stored_entries(proxy)][:3] == [FIRST["content"], ANSWER, NEXT["content"]]
    upstream.script = lambda _: sse(stream_of("Closed."))
    later = prompt(proxy, upstream, *window, assistant_message(ANSWER), assistant_message(f"{ANSWER} "), LAST)
    assert later == [FIRST["content"], ANSWER, NEXT["content"], ANSWER, LAST["content"]]


@pytest.mark.parametrize(("one", "other"), [("We are open...", "We are open..."), ("WE ARE OPEN", "we are")])
def test_a_doubled_answer_that_was_cut_is_told_once(
    proxy: ProxyServer, upstream: FakeUpstream, one: str, other: str
) -> None:
    call(proxy, FIRST, stream=True)
    stored_entries(proxy)
    shown = prompt(proxy, upstream, FIRST, assistant_message(one), assistant_message(other), NEXT)
    assert len(shown) == 3
    assert shown[1].endswith("[interrupted here; the caller did not hear: until six today.]")
    assert len(stored_entries(proxy)) == 4


def test_a_doubled_answer_of_a_numbered_turn_is_told_once(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    first, following = user("Are you open?", 1), user("And tomorrow?", 2)
    call(proxy, first, stream=True)
    stored_entries(proxy)
    shown = prompt(
        proxy, upstream, first, assistant_message(ANSWER, 1), assistant_message(f"{ANSWER}\n", 1), following
    )
    assert shown == [FIRST["content"], ANSWER, NEXT["content"]]


def test_an_answer_in_pieces_and_doubled_is_told_whole(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    call(proxy, FIRST, stream=True)
    stored_entries(proxy)
    shown = prompt(
        proxy, upstream, FIRST, assistant_message("We are open"), assistant_message("until six today."), NEXT
    )
    assert " ".join(shown) == f"{FIRST['content']} {ANSWER} {NEXT['content']}"


@pytest.mark.parametrize("session", [None, "s1"])
def test_a_doubled_answer_that_memory_does_not_know_is_told_once(
    proxy: ProxyServer, upstream: FakeUpstream, session: str | None
) -> None:
    headers = {} if session is None else {"X-Session-Id": session}
    window = [FIRST, assistant_message("We never close."), assistant_message("We never close.\n"), NEXT]
    proxy.chat(window, headers=headers, stream=True)
    assert [message["content"] for message in upstream.last.json["messages"]] == [
        FIRST["content"],
        "We never close.",
        NEXT["content"],
    ]


def test_what_the_assistant_says_twice_in_two_turns_is_told_twice(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    call(proxy, FIRST, stream=True)
    stored_entries(proxy)
    call(proxy, FIRST, assistant_message(ANSWER), NEXT, stream=True)
    shown = prompt(
        proxy, upstream, FIRST, assistant_message(ANSWER), NEXT, assistant_message(f"{ANSWER}\n"), LAST
    )
    assert shown == [FIRST["content"], ANSWER, NEXT["content"], ANSWER, LAST["content"]]
