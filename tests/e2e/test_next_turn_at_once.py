"""Law 8: the next request of a session sees the last answer, however soon it comes."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.conftest import Address
from tests.peers.fake_upstream import HANG, HEAD, ROLE, FakeUpstream, chunk, delta, sse, stream_of
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import CONFIG, call, settle, stored_entries, texts, user
from tests.waiting import until

STORES = ("sqlite", "redis", "postgresql")
TURNS = 40
SLIDING = 8
"""How many messages an engine with a window shows at most."""


@pytest.fixture(params=STORES)
def remembering(request: pytest.FixtureRequest, address: Address, serve: Serve) -> ProxyServer:
    config = CONFIG.replace("memory: {", "memory: {window: {max_messages: 1000, keep_messages: 100}, ")
    return serve(config, MEMORY_URL=address(request.param))


def prompts(upstream: FakeUpstream) -> list[list[tuple[str, str]]]:
    """What the model was shown, request by request."""
    return [
        [(message["role"], message["content"]) for message in request.json["messages"]]
        for request in upstream.requests
    ]


def talk(turns: int) -> list[dict[str, Any]]:
    """A conversation, line by line."""
    lines: list[dict[str, Any]] = []
    for turn in range(turns):
        lines += [
            {"role": "user", "content": f"This is question {turn} of ours."},
            {"role": "assistant", "content": f"That was answer {turn} of mine."},
        ]
    return lines


@pytest.mark.parametrize("window", [1, SLIDING])
def test_turns_without_a_pause_are_all_in_the_next_prompt(
    remembering: ProxyServer, upstream: FakeUpstream, window: int
) -> None:
    lines = talk(TURNS)
    for turn in range(TURNS):
        upstream.says(*sse(stream_of(lines[2 * turn + 1]["content"])))
        spoken = lines[: 2 * turn + 1]
        call(remembering, *spoken[-window:], stream=True).raise_for_status()
    expected = [[(line["role"], line["content"]) for line in lines[: 2 * turn + 1]] for turn in range(TURNS)]
    assert prompts(upstream) == expected
    assert texts(stored_entries(remembering)) == [(line["role"], line["content"]) for line in lines]


class Client:
    """A client that reads its answer as it comes, and leaves when it wants to."""

    def __init__(self, port: int, *messages: dict[str, Any]) -> None:
        body = json.dumps({"model": "fake", "stream": True, "messages": messages}).encode()
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx-session-id: s1\r\n"
        self.socket.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)

    def read_until(self, text: bytes) -> None:
        """Reads until a text has come."""
        data = b""
        while text not in data:
            piece = self.socket.recv(65_536)
            assert piece, f"the answer has ended: {data!r}"
            data += piece


def test_a_turn_behind_a_hang_up_knows_what_was_relayed(
    remembering: ProxyServer, upstream: FakeUpstream
) -> None:
    for turn in range(10):
        upstream.says(HEAD, chunk(ROLE), chunk(delta(content=f"I begin answer {turn} but")), HANG)
        client = Client(remembering.port, user(f"This is question {turn} of ours."))
        client.read_until(f"answer {turn} but".encode())
        client.socket.close()
        upstream.says(*sse(stream_of(f"That was answer {turn} of mine.")))
        call(remembering, user(f"And what is behind {turn}?"), stream=True).raise_for_status()
        shown = [text for _, text in prompts(upstream)[-1]]
        assert any(f"I begin answer {turn} but" in text for text in shown), shown
        assert shown[-1] == f"And what is behind {turn}?"


def test_a_turn_behind_the_done_event_knows_the_answer(
    remembering: ProxyServer, upstream: FakeUpstream
) -> None:
    """A client may take ``[DONE]`` for the end, and ask over another connection."""
    for turn in range(10):
        upstream.says(*sse(stream_of(f"That was answer {turn} of mine.")))
        client = Client(remembering.port, user(f"This is question {turn} of ours."))
        client.read_until(b"[DONE]")
        call(remembering, user(f"And what is behind {turn}?"), stream=True).raise_for_status()
        client.socket.close()
        assert ("assistant", f"That was answer {turn} of mine.") in prompts(upstream)[-1]
    assert until(lambda: len(stored_entries(remembering)) == 40)


def test_a_turn_is_in_what_programs_read_at_once(remembering: ProxyServer, upstream: FakeUpstream) -> None:
    client, memory = remembering.client, "/v1/memory/"
    for turn in range(10):
        name = f"s{turn}"
        for spoken in (1, 3):
            lines = [user("Hello?"), {"role": "assistant", "content": "Yes, I"}, user("Is it late?")]
            upstream.says(*sse(stream_of("Yes, I am here and I will stay.")))
            call(remembering, *lines[:spoken], session=name, stream=True, user=name).raise_for_status()
            entries = client.get(f"{memory}sessions/{name}").json()["contents"]
            assert len(entries) == spoken + 1
        assert name in {each["id"] for each in client.get(f"{memory}sessions").json()["data"]}
        upstream.says(*sse(stream_of("Good night.")))
        call(remembering, user("Bye."), session=f"t{turn}", stream=True, user=name).raise_for_status()
        exported = client.get(f"{memory}users/{name}/export").json()["sessions"]
        assert {each["id"] for each in exported} == {name, f"t{turn}"}


def test_a_turn_is_on_the_page_at_once(remembering: ProxyServer, upstream: FakeUpstream) -> None:
    for turn in range(TURNS):
        upstream.says(*sse(stream_of(f"That was answer {turn} of mine.")))
        call(remembering, user("Hello?"), session=f"s{turn // 4}", stream=True).raise_for_status()
        page = remembering.client.get(f"/conversations/s{turn // 4}")
        assert page.status_code == 200
        assert f"That was answer {turn} of mine." in page.text
        assert f"s{turn // 4}" in remembering.client.get("/conversations").text


def test_changes_of_a_session_that_come_at_once_are_all_made(remembering: ProxyServer) -> None:
    client = remembering.client
    client.post("/v1/memory/sessions", json={"id": "s1"}).raise_for_status()
    with ThreadPoolExecutor(24) as many:
        path = "/v1/memory/sessions/s1/state"
        replies = many.map(lambda number: client.patch(path, json={f"n{number}": number}), range(24))
        assert [reply.status_code for reply in replies] == [200] * 24
    assert client.get(path).json() == {f"n{number}": number for number in range(24)}


def test_what_was_said_just_before_a_user_is_forgotten_goes_too(
    remembering: ProxyServer, upstream: FakeUpstream
) -> None:
    client = remembering.client
    for turn in range(10):
        upstream.says(*sse(stream_of("Hello.")))
        call(remembering, user("I am Ann."), session=f"s{turn}", stream=True, user="ann").raise_for_status()
        assert client.delete("/v1/memory/users/ann").status_code == 204
    assert until(lambda: stored_entries(remembering) == [])
    assert client.get("/v1/memory/users/ann/export").json()["sessions"] == []
    assert client.get("/v1/memory/sessions").json()["data"] == []


@pytest.mark.parametrize("store", ["redis", "postgresql"])
def test_what_was_said_just_before_a_user_is_forgotten_at_another_host_goes_too(
    serve: Serve, address: Address, upstream: FakeUpstream, store: str
) -> None:
    environ = {"MEMORY_URL": address(store)}
    here, there = serve(CONFIG, **environ), serve(CONFIG, **environ)
    upstream.says(*sse(stream_of("Hello.")))
    for turn in range(TURNS):
        name = f"u{turn}"
        call(here, user("I am here."), session=f"s{turn}", stream=True, user=name).raise_for_status()
        assert there.client.delete(f"/v1/memory/users/{name}").status_code == 204
    call(here, user("I am here."), session="s0", stream=True, user="u0").raise_for_status()
    settle(here)
    listed = there.client.get("/v1/memory/sessions").json()["data"]
    assert [one["id"] for one in listed] == ["s0"], "who comes back is known again"
