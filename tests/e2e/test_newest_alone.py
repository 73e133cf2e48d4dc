"""Clients that send only their newest message: the names of requests tell a retry from a turn."""

from typing import Any

import pytest

from tests.e2e.conftest import Address
from tests.peers.fake_upstream import FakeUpstream, answer, sse, stream_of
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import CONFIG, stored_entries, texts, user

TALK = ["Book a table.", "Yes.", "Yes."]


@pytest.fixture
def remembering(address: Address, serve: Serve) -> ProxyServer:
    return serve(CONFIG, MEMORY_URL=address("memory"))


def ask(proxy: ProxyServer, words: str, headers: dict[str, str], **fields: Any) -> None:
    proxy.chat([user(words)], headers={"X-Session-Id": "s1", **headers}, stream=True, **fields)
    stored_entries(proxy)


def user_texts(proxy: ProxyServer) -> list[str]:
    return [text for role, text in texts(stored_entries(proxy)) if role == "user"]


@pytest.mark.parametrize(
    "name",
    [
        lambda i: ({"X-Request-Id": f"r{i}"}, {}),
        lambda i: ({"Idempotency-Key": f"r{i}"}, {}),
        lambda i: ({}, {"round_id": i}),
        lambda i: ({}, {"extendData": f"{{'instanceId':'i1','sentenceId':{i}}}"}),
        lambda _: ({"X-Stainless-Retry-Count": "0"}, {}),
    ],
    ids=["tencent", "idempotency", "volcengine", "alibaba", "openai"],
)
def test_the_same_words_in_another_request_are_another_turn(
    remembering: ProxyServer, upstream: FakeUpstream, name: Any
) -> None:
    for i, words in enumerate(TALK):
        headers, fields = name(i)
        ask(remembering, words, headers, **fields)
    assert user_texts(remembering) == TALK
    assert [m["content"] for m in upstream.last.json["messages"] if m["role"] == "user"] == TALK


@pytest.mark.parametrize(
    ("first", "again"),
    [
        ({}, {}),
        ({"X-Request-Id": "r1"}, {"X-Request-Id": "r1"}),
        ({"X-Request-Id": "r1"}, {}),
        (
            {"X-Request-Id": "r1", "X-Stainless-Retry-Count": "0"},
            {"X-Request-Id": "r2", "X-Stainless-Retry-Count": "1"},
        ),
    ],
)
def test_a_retry_is_the_same_turn(
    remembering: ProxyServer, first: dict[str, str], again: dict[str, str]
) -> None:
    ask(remembering, "Book a table.", {})
    ask(remembering, "Yes.", first)
    before = stored_entries(remembering)
    ask(remembering, "Yes.", again)
    assert texts(stored_entries(remembering)) == texts(before)


@pytest.mark.parametrize(("first", "then"), [("Yes please", "Yes"), ("No", "Not now")])
def test_what_is_said_behind_a_whole_answer_is_a_turn_of_its_own(
    remembering: ProxyServer, first: str, then: str
) -> None:
    for words in (first, then, "Bye."):
        ask(remembering, words, {})
    assert user_texts(remembering) == [first, then, "Bye."]


def test_a_turn_that_failed_is_not_held_when_it_comes_again(
    remembering: ProxyServer, upstream: FakeUpstream
) -> None:
    upstream.script = lambda _: answer({"error": {"message": "no"}}, 400)
    ask(remembering, "Yes.", {"X-Request-Id": "r1"})
    upstream.script = lambda _: sse(stream_of("Fine."))
    ask(remembering, "Yes.", {"X-Request-Id": "r2"})
    assert texts(stored_entries(remembering)) == [("user", "Yes."), ("assistant", "Fine.")]
