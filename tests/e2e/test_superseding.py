"""A newer request for a turn takes the older one's place, and nobody else's."""

import json
import random
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import msgspec
import openai
import pytest

from filters.message import Message as Line
from proxy.memory.session import Entry, decode
from proxy.memory.stores.store import Key
from proxy.runtime import Runtime
from proxy.settings.build import build_runtime
from proxy.settings.load import load
from proxy.turn import active
from proxy.turn.active import TurnClaim
from tests.peers.fake_upstream import (
    DONE,
    END,
    HANG,
    HEAD,
    ROLE,
    FakeUpstream,
    Received,
    Step,
    by_default,
    chunk,
    delta,
)
from tests.proxy_server import ProxyServer, Serve
from tests.waiting import until

Message = dict[str, Any]
REMEMBERING = """
memory: {sessions: "memory:"}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines: {default: {upstreams: [main], request: []}}
"""
FILLING = """
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default: {upstreams: [main], request: [], answer: [{filler: {after: 100ms, phrases: ["One moment."]}}]}
"""
BEGUN = [HEAD, chunk(ROLE + delta(content="Half a "))]


def user(text: str, turn: int | None = None, **more: Any) -> Message:
    return {"role": "user", "content": text, **({} if turn is None else {"turn_id": turn}), **more}


def assistant_message(text: str) -> Message:
    return {"role": "assistant", "content": text}


class Heard(NamedTuple):
    """What a client got of a stream, in the end."""

    status_code: int
    content: bytes


class Callers:
    """Clients that call at the same time; a call returns once the model has been asked."""

    def __init__(self, proxy: ProxyServer, upstream: FakeUpstream, pool: ThreadPoolExecutor) -> None:
        self._proxy = proxy
        self._upstream = upstream
        self._pool = pool

    def call(
        self, *messages: Message, session: str | None = "s1", headers: Any = None, **fields: Any
    ) -> Future[Any]:
        before = len(self._upstream.requests)
        named = {"X-Session-Id": session} if session else {}
        answer = self._pool.submit(
            self._proxy.chat, list(messages), headers=named | (headers or {}), **fields
        )
        assert until(lambda: len(self._upstream.requests) > before)
        return answer

    def hear(self, *messages: Message, session: str = "s1") -> Future[Heard]:
        """A call for a stream; it returns once the first bytes are at the client."""
        began = Event()

        def listen() -> Heard:
            body, named = {"model": "m", "stream": True, "messages": messages}, {"X-Session-Id": session}
            with self._proxy.client.stream("POST", "/v1/chat/completions", json=body, headers=named) as got:
                parts = []
                for part in got.iter_raw():
                    parts.append(part)
                    began.set()
                return Heard(got.status_code, b"".join(parts))

        heard = self._pool.submit(listen)
        assert began.wait(10)
        return heard


@pytest.fixture
def callers(proxy: ProxyServer, upstream: FakeUpstream) -> Iterator[Callers]:
    with ThreadPoolExecutor(64) as pool:
        yield Callers(proxy, upstream, pool)


def holding(*steps: Step, words: str = "Tell") -> Callable[[Received], Iterable[Step]]:
    """The model stalls, after these steps, over whatever ends in ``words``."""

    def script(request: Received) -> Iterable[Step]:
        held = json.dumps(request.json["messages"][-1]).find(f'{words}"') >= 0
        return [*steps, HANG] if held else by_default(request)

    return script


def test_the_older_is_refused_and_its_model_let_go(callers: Callers, upstream: FakeUpstream) -> None:
    upstream.script = holding()
    older = callers.call(user("Tell", 3), stream=True)
    asked = upstream.last
    newer = callers.call(user("Tell me a joke", 3), stream=True)
    sent = time.monotonic()
    assert asked.closed.wait(10)
    assert asked.closed_at - sent < 5
    refused = older.result(10)
    assert refused.status_code == 409
    error = refused.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == "superseded"
    assert refused.headers["x-turnkeeper-session"] == "s1"
    assert "there." in newer.result(10).text


@pytest.mark.parametrize("steps", [[], BEGUN[:1], [b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{"]])
def test_whatever_the_older_waits_for_it_is_refused(
    callers: Callers, upstream: FakeUpstream, steps: list[bytes]
) -> None:
    upstream.script = holding(*steps)
    older = callers.call(user("Tell", 3))
    newer = callers.call(user("Tell me", 3))
    assert (older.result(10).status_code, newer.result(10).status_code) == (409, 200)


def test_a_stream_that_has_begun_ends_cleanly(callers: Callers, upstream: FakeUpstream) -> None:
    upstream.script = holding(*BEGUN)
    older = callers.hear(user("Tell", 3))
    asked = upstream.last
    newer = callers.call(user("Tell me a joke", 3), stream=True)
    assert asked.closed.wait(10)
    got = older.result(10)
    assert got.status_code == 200
    assert got.content == ROLE + delta(content="Half a ") + DONE
    assert "there." in newer.result(10).text


def test_a_phrase_that_filled_the_silence_is_ended_cleanly(serve: Serve, upstream: FakeUpstream) -> None:
    proxy = serve(FILLING)
    upstream.script = holding()
    with ThreadPoolExecutor() as pool:
        callers = Callers(proxy, upstream, pool)
        older = callers.hear(user("Tell", 3))
        newer = callers.call(user("Tell me", 3), stream=True)
        text = older.result(10).content.decode()
        assert "One moment." in text
        assert text.endswith("\n\ndata: [DONE]\n\n")
        assert "there." in newer.result(10).text


def test_the_turn_number_may_stand_at_the_top(callers: Callers, upstream: FakeUpstream) -> None:
    upstream.script = holding()
    older = callers.call(user("Tell"), turn_id=7)
    newer = callers.call(user("Sing"), turn_id=7)
    assert (older.result(10).status_code, newer.result(10).status_code) == (409, 200)


EARLIER = [{"role": "system", "content": "It is 12:00."}, user("Hello."), assistant_message("Hi, Ann!")]
LATER = [{"role": "system", "content": "It is 12:01."}, user("hello"), assistant_message("Hi Ann.")]
EXTENSIONS = {
    "of the first words": ([user("Tell")], [user("Tell me")]),
    "over the same talk": ([*EARLIER, user("Tell")], [*EARLIER, user("Tell me")]),
    "over talk written otherwise": ([*EARLIER, user("I - Tell")], [*LATER, user("i tell you")]),
    "numbered only now": ([user("Tell")], [user("Tell me", 2)]),
}


@pytest.mark.parametrize("name", EXTENSIONS)
def test_without_numbers_extended_words_take_the_place(
    callers: Callers, upstream: FakeUpstream, name: str
) -> None:
    upstream.script = holding()
    before, after = EXTENSIONS[name]
    older = callers.call(*before)
    newer = callers.call(*after)
    assert (older.result(10).status_code, newer.result(10).status_code) == (409, 200)


ASKING = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
APART: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the same body again": ({"messages": [user("Tell", 3)]}, {"messages": [user("Tell", 3)]}),
    "the same body without a number": ({"messages": [user("Tell")]}, {"messages": [user("Tell")]}),
    "the same messages with other options": (
        {"messages": [user("Tell", 3)]},
        {"messages": [user("Tell", 3)], "temperature": 0},
    ),
    "another turn": ({"messages": [user("Tell", 3)]}, {"messages": [user("Tell me", 4)]}),
    "another turn at the top": (
        {"messages": [user("Tell", 3)], "turn_id": 3},
        {"messages": [user("Tell me", 3)], "turn_id": 4},
    ),
    "other words without a number": ({"messages": [user("Tell")]}, {"messages": [user("Sing")]}),
    "fewer words without a number": ({"messages": [user("Go. Tell")]}, {"messages": [user("Go")]}),
    "other talk before": (
        {"messages": [user("Hi"), assistant_message("Yes?"), user("Tell")]},
        {"messages": [user("Hi"), assistant_message("No?"), user("Tell me")]},
    ),
    "a later turn without a number": (
        {"messages": [user("Tell")]},
        {"messages": [user("Tell"), assistant_message("Half"), user("Tell me")]},
    ),
    "another speaker": (
        {"messages": [user("Tell", metadata={"user": "ann"})]},
        {"messages": [user("Tell me", metadata={"user": "bob"})]},
    ),
    "a tool's result without a number": (
        {"messages": [user("Tell")]},
        {"messages": [user("Tell"), ASKING, {"role": "tool", "tool_call_id": "c", "content": "1"}]},
    ),
    "another session": (
        {"messages": [user("Tell", 3)]},
        {"messages": [user("Tell me", 3)], "session": "s2"},
    ),
    "no session": (
        {"messages": [user("Tell", 3)], "session": None},
        {"messages": [user("Tell me", 3)], "session": None},
    ),
    "background work that is older": (
        {"messages": [user("Tell", 3)], "headers": {"X-Background": "true"}},
        {"messages": [user("Tell me", 3)]},
    ),
    "background work that is newer": (
        {"messages": [user("Tell", 3)]},
        {"messages": [user("Tell me", 3)], "headers": {"X-Background": "true"}},
    ),
}


@pytest.mark.parametrize("name", APART)
def test_calls_that_share_no_turn_are_all_answered(
    callers: Callers, upstream: FakeUpstream, name: str
) -> None:
    upstream.script = lambda request: [0.3, *by_default(request)]
    answers = [callers.call(*each["messages"], **_less_messages(each)) for each in APART[name]]
    assert [each.result(10).status_code for each in answers] == [200, 200]


def _less_messages(call: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in call.items() if name != "messages"}


def test_the_same_session_of_two_tenants_is_two(serve: Serve, upstream: FakeUpstream) -> None:
    proxy = serve("keys: 'one:secret-1,two:secret-2'\n" + REMEMBERING)
    upstream.script = lambda request: [0.3, *by_default(request)]
    with ThreadPoolExecutor() as pool:
        callers = Callers(proxy, upstream, pool)
        older = callers.call(user("Tell", 3), headers={"Authorization": "Bearer secret-1"})
        newer = callers.call(user("Tell me", 3), headers={"Authorization": "Bearer secret-2"})
        assert (older.result(10).status_code, newer.result(10).status_code) == (200, 200)


def test_a_tool_s_result_takes_the_place_of_the_call_that_still_runs(
    callers: Callers, upstream: FakeUpstream
) -> None:
    upstream.script = holding()
    older = callers.call(user("Tell", 3))
    result = {"role": "tool", "tool_call_id": "c", "content": "1"}
    newer = callers.call(user("Tell", 3), ASKING, result)
    assert (older.result(10).status_code, newer.result(10).status_code) == (409, 200)


def test_all_that_ask_for_the_older_words_give_way(callers: Callers, upstream: FakeUpstream) -> None:
    upstream.script = holding()
    older = [callers.call(user("Tell", 3)) for _ in range(3)]
    newer = callers.call(user("Tell me", 3))
    assert [each.result(10).status_code for each in older] == [409] * 3
    assert newer.result(10).status_code == 200


def test_openai_s_client_does_not_take_its_place_back(
    proxy: ProxyServer, callers: Callers, upstream: FakeUpstream
) -> None:
    upstream.script = holding()
    messages: Any = [user("Tell", 3)]
    with (
        ThreadPoolExecutor() as pool,
        openai.OpenAI(base_url=proxy.url, api_key="any", default_headers={"X-Session-Id": "s1"}) as client,
    ):
        older = pool.submit(client.chat.completions.create, model="m", messages=messages)
        assert until(lambda: len(upstream.requests) == 1)
        newer = callers.call(user("Tell me", 3))
        with pytest.raises(openai.ConflictError):
            older.result(10)
    assert newer.result(10).status_code == 200
    assert len(upstream.requests) == 2


def test_a_reload_between_them_changes_nothing(
    proxy: ProxyServer, callers: Callers, upstream: FakeUpstream, tmp_path: Path
) -> None:
    upstream.script = holding()
    older = callers.call(user("Tell", 3))
    path, environ = tmp_path / "config.yaml", {"UPSTREAM_BASE_URL": upstream.url}
    proxy.run(_swap(proxy, build_runtime(load(path, environ), environ)))
    newer = callers.call(user("Tell me", 3))
    assert (older.result(10).status_code, newer.result(10).status_code) == (409, 200)


async def _swap(proxy: ProxyServer, parts: Runtime) -> None:
    proxy.app.swap(parts)


def test_of_the_older_only_what_reached_the_client_is_remembered(
    serve: Serve, upstream: FakeUpstream
) -> None:
    proxy = serve(REMEMBERING)
    upstream.script = holding(*BEGUN)
    with ThreadPoolExecutor() as pool:
        callers = Callers(proxy, upstream, pool)
        heard = callers.hear(user("Tell", 3), session="heard")
        upstream.script = holding(HEAD, chunk(ROLE))
        unheard = callers.call(user("Tell", 3), stream=True, session="unheard")
        time.sleep(0.1)  # its role may have come by then; if not, it is as unheard
        upstream.script = holding(words="me")
        # The newer are still being answered: what is held is the older's alone.
        newer = [callers.call(user("Tell me", 3), session=name) for name in ("heard", "unheard")]
        assert heard.result(10).status_code == 200
        assert unheard.result(10).status_code == 409
        assert until(lambda: texts(proxy, "heard") == [("user", "Tell"), ("assistant", "Half a ")])
        assert texts(proxy, "unheard") == []
        upstream.script = by_default
        last = [callers.call(user("Tell me!", 3), session=name) for name in ("heard", "unheard")]
        assert [each.result(10).status_code for each in (*newer, *last)] == [409, 409, 200, 200]
    answered = [("user", "Tell me!"), ("assistant", "Hello there.")]
    assert until(lambda: texts(proxy, "unheard") == answered)


@pytest.mark.parametrize("system", [[], [{"role": "system", "content": "Be brief."}]])
def test_words_that_grow_twice_within_a_moment_are_told_once(
    serve: Serve, upstream: FakeUpstream, system: list[Message]
) -> None:
    """As drafts of a line: the first is answered, the second has its place taken amid its answer."""
    proxy = serve(REMEMBERING.replace("request: []", "request: [restore_history]"))
    upstream.script = holding(*BEGUN, words="a joke")
    with ThreadPoolExecutor() as pool:
        callers = Callers(proxy, upstream, pool)
        callers.call(*system, user("Tell me")).result(10)
        older = callers.hear(*system, user("Tell me a joke"))
        callers.call(*system, user("Tell me a joke, please.")).result(10)
        assert older.result(10).content.endswith(DONE)
    assert upstream.last.json["messages"] == [*system, user("Tell me a joke, please.")]
    expected = [("user", "Tell me a joke, please."), ("assistant", "Hello there.")]
    assert until(lambda: texts(proxy, "s1") == expected), texts(proxy, "s1")


def test_what_took_its_place_is_remembered_though_another_process_read_it_earlier(
    serve: Serve, upstream: FakeUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(active, "_JITTER", 60.0)  # this machine may be slow between the two
    config = REMEMBERING.replace('"memory:"', f'"sqlite:{tmp_path / "m.db"}"')
    one, other = serve(config), serve(config)
    is_over = Event()

    def script(request: Received) -> Iterable[Step]:
        yield from BEGUN
        if "joke" not in request.body.decode():
            yield HANG
        while not is_over.is_set():
            yield 0.01
        yield chunk(delta(content="joke.") + delta(finish="stop") + DONE)
        yield END

    upstream.script = script
    with ThreadPoolExecutor() as pool:
        newer = Callers(other, upstream, pool).hear(user("Tell me a joke", 3))
        older = Callers(one, upstream, pool).hear(user("Tell", 3))
        [(_, turn)] = other.app.active_turns
        one.run(_hear_of(one, user("Tell me a joke", 3), turn.entered_at))
        assert older.result(10).content.endswith(DONE)
        is_over.set()
        assert newer.result(10).content.endswith(DONE)
    assert until(lambda: texts(other, "s1") == [("user", "Tell me a joke"), ("assistant", "Half a joke.")])


async def _hear_of(proxy: ProxyServer, message: Message, at: float) -> None:
    """Another process says what it has answered since ``at``."""
    claim = TurnClaim(message["turn_id"], [msgspec.convert(message, Line)])
    proxy.app.active_turns.cancel_superseded((Key("default", "s1"), "default"), at, lambda: claim)


def texts(proxy: ProxyServer, session: str) -> list[tuple[str, Any]]:
    memory = proxy.app.memory
    assert memory
    blob = proxy.run(memory.store.read(Key("default", session)))
    entries: list[Entry] = list(decode(blob.blob).entries) if blob else []
    return [(entry.role, entry.content) for entry in entries]


@pytest.mark.parametrize("steps", [[], BEGUN])
def test_fifty_in_a_row_leave_nothing_behind(
    proxy: ProxyServer, callers: Callers, upstream: FakeUpstream, steps: list[bytes]
) -> None:
    assert proxy.chat().status_code == 200
    tasks = proxy.tasks()
    upstream.script = lambda _: [*steps, HANG]
    older = [callers.call(user("word " * count, 3), stream=True) for count in range(1, 51)]
    upstream.script = by_default
    newer = callers.call(user("Now", 3), stream=True)
    assert newer.result(10).text.endswith("[DONE]\n\n")
    assert {each.result(10).status_code for each in older} <= {200, 409}
    assert until(lambda: upstream.open <= 1), f"{upstream.open} connections are still open"
    assert len(proxy.app.active_turns) == 0
    proxy.client.close()
    assert until(lambda: proxy.tasks() <= tasks), f"{proxy.tasks()} tasks, there were {tasks}"


def test_a_hang_up_at_the_same_time_is_harmless(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    chooser = random.Random(1)
    assert proxy.chat().status_code == 200
    tasks = proxy.tasks()
    for attempt in range(40):
        asked = len(upstream.requests)
        upstream.script = holding(*chooser.choice([[], BEGUN]))
        older = posted(proxy.port, user("Tell", 3))
        assert until(lambda seen=asked: len(upstream.requests) > seen)
        newer = posted(proxy.port, user("Tell me", 3))
        time.sleep(chooser.random() / 500 if attempt % 2 else 0)
        older.close()
        with newer:
            assert newer.recv(12) == b"HTTP/1.1 200"
    assert until(lambda: upstream.open <= 2), f"{upstream.open} connections are still open"
    assert until(lambda: proxy.tasks() <= tasks), f"{proxy.tasks()} tasks, there were {tasks}"
    assert len(proxy.app.active_turns) == 0


def posted(port: int, *messages: Message) -> socket.socket:
    body = json.dumps({"model": "m", "stream": True, "messages": messages}).encode()
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx-session-id: s1\r\n"
    client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return client
