"""What a model says unasked: it opens the talk, or speaks up in the midst of it, on an instruction alone."""

from typing import Any

import pytest

from tests.peers.fake_upstream import FakeUpstream, sse, stream_of
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import CONFIG, assistant_message, call, stored_entries, texts, user

HELLO = "Hello caller, welcome to the shop."


@pytest.fixture
def proxy(serve: Serve) -> ProxyServer:
    return serve(CONFIG)


def a_message(text: str, role: str = "system") -> dict[str, Any]:
    return {"role": role, "content": text}


def says(upstream: FakeUpstream, text: str) -> None:
    upstream.says(*sse(stream_of(text)))


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_greeting_is_remembered_and_its_interruption_found(
    proxy: ProxyServer, upstream: FakeUpstream, role: str
) -> None:
    says(upstream, HELLO)
    call(proxy, a_message("Greet the caller.", role), stream=True)
    assert texts(stored_entries(proxy)) == [("assistant", HELLO)]
    says(upstream, "Hi.")
    call(
        proxy,
        a_message("Greet the caller.", role),
        assistant_message("Hello caller,"),
        user("hi"),
        stream=True,
    )
    assert "did not hear: welcome to the shop." in upstream.last.json["messages"][1]["content"]
    greeting, *others = stored_entries(proxy)
    assert (greeting.text, greeting.interrupted, greeting.original) == ("Hello caller,", True, HELLO)
    assert [entry.turn for entry in (greeting, *others)] == [0, 1, 1]
    assert texts(others) == [("user", "hi"), ("assistant", "Hi.")]


def test_who_sends_the_newest_alone_gets_the_greeting_back(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    says(upstream, HELLO)
    call(proxy, a_message("Greet."), stream=True)
    stored_entries(proxy)
    call(proxy, user("hi"), stream=True)
    assert [m["content"] for m in upstream.last.json["messages"]] == [HELLO, "hi"]


def test_the_same_instruction_again_leaves_one_answer(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    for text in (HELLO, "Good day."):
        says(upstream, text)
        call(proxy, a_message("Greet."), stream=True)
        assert texts(stored_entries(proxy)) == [("assistant", text)]
    says(upstream, "Are you there?")
    call(proxy, a_message("Ask whether they are there."), stream=True)
    assert texts(stored_entries(proxy)) == [("assistant", "Good day."), ("assistant", "Are you there?")]


def test_a_model_may_speak_up_in_the_midst(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    says(upstream, "First.")
    call(proxy, user("q"), stream=True)
    stored_entries(proxy)
    for _ in range(2):
        says(upstream, "Bye.")
        call(proxy, a_message("Say bye."), stream=True)
        assert texts(stored_entries(proxy)) == [("user", "q"), ("assistant", "First."), ("assistant", "Bye.")]
    call(proxy, user("Bye, then"), stream=True)
    assert [m["content"] for m in upstream.last.json["messages"]] == ["q", "First.", "Bye.", "Bye, then"]


def test_a_second_opening_stands_behind_the_first(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    says(upstream, HELLO)
    call(proxy, a_message("Greet."), stream=True)
    stored_entries(proxy)
    for _ in range(2):
        says(upstream, "How can I help?")
        call(proxy, a_message("Greet."), assistant_message(HELLO), a_message("Ask."), stream=True)
        assert texts(stored_entries(proxy)) == [("assistant", HELLO), ("assistant", "How can I help?")]
    call(proxy, assistant_message(HELLO), assistant_message("How can"), user("Stop"), stream=True)
    assert [entry.interrupted for entry in stored_entries(proxy)][:3] == [False, True, False]


def test_an_opening_of_which_nothing_came_leaves_nothing(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    says(upstream, "")
    call(proxy, a_message("Greet."), stream=True)
    assert stored_entries(proxy) == []
