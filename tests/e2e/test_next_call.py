"""The next call on a channel with ``system_messages``: each earlier call is told once."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from tests.e2e.conftest import Address
from tests.long_call import config, is_notes, marks, model, noted, sentence, settle, stream_text
from tests.peers.fake_upstream import FakeUpstream, Received, Step, answer
from tests.proxy_server import ProxyServer, Serve

BUSY = answer({"error": {"message": "Busy"}}, 503)
INSTRUCTIONS = {"role": "system", "content": "You are the voice of a travel agency."}
BLOCK = re.compile(r"<(\w+_conversation|conversation_so_far)>\n(.*?)\n</\1>", re.DOTALL)


@pytest.fixture(params=["sqlite", "redis", "postgresql", "memory"])
def url(request: pytest.FixtureRequest, address: Address) -> str:
    return address(request.param)


@pytest.fixture
def small_window(serve: Serve, upstream: FakeUpstream, url: str) -> ProxyServer:
    """A server that summarises past ten messages."""
    upstream.script = model()
    return serve(config(10, 4), MEMORY_URL=url)


class Caller:
    """Ann, who calls on one channel again and again; each message of all her calls has a mark of its own."""

    def __init__(self, proxy: ProxyServer, upstream: FakeUpstream, size: int = 6) -> None:
        self.proxy = proxy
        self.upstream = upstream
        self.size = size
        self.number = 0
        self.first = 0
        self.lines: list[dict[str, Any]] = []
        self.instructions: Sequence[dict[str, Any]] = [INSTRUCTIONS]

    def join(self, *, informed: bool = True) -> None:
        """Another call begins, whose agent is given what the last ones were about."""
        given = self.system_messages() if informed else []
        self.lines, self.first, self.instructions = [], self.number, [*given, INSTRUCTIONS]

    def system_messages(self) -> Any:
        return self.proxy.client.get("/v1/memory/users/ann/system_messages").json()

    def turn(self, *, settling: bool = True) -> list[dict[str, Any]]:
        """One turn; what the model was shown."""
        n, self.number = self.number, self.number + 1
        self.lines.append(self._line("user", f"user{n} asks whether {sentence(n)}", n))
        got = self.proxy.chat(
            [*self.instructions, *self.lines[-self.size :]], channel="room", user_id="ann", stream=True
        )
        assert got.status_code == 200, got.text
        prompt = [r.json for r in list(self.upstream.requests) if not is_notes(r)][-1]["messages"]
        self.lines.append(self._line("assistant", stream_text(got.text), n))
        if settling:
            settle(self.proxy)
        return list(prompt)

    def _line(self, role: str, text: str, n: int) -> dict[str, Any]:
        return {
            "role": role,
            "content": text,
            "turn_id": n - self.first,
            "timestamp": 1_700_000_000 + 1000 * self.first + 10 * n,
        }

    def check(self, prompt: Iterable[dict[str, Any]]) -> None:
        """Every message of all calls is told once."""
        n = self.number - 1
        expected = Counter([(kind, i) for kind in ("user", "answer") for i in range(n)] + [("user", n)])
        assert marks(prompt) == expected


@pytest.fixture
def caller(small_window: ProxyServer, upstream: FakeUpstream) -> Caller:
    return Caller(small_window, upstream)


def blocks(messages: Iterable[dict[str, Any]]) -> dict[str, str]:
    """The blocks in messages, by name."""
    found = [pair for message in messages for pair in BLOCK.findall(message["content"] or "")]
    assert len({name for name, _ in found}) == len(found), found
    return dict(found)


def away(_: Received) -> Iterable[Step]:
    return BUSY


@pytest.mark.parametrize("turns", [1, 3, 12])
@pytest.mark.parametrize("notes", [noted, away], ids=["summarised", "not summarised yet"])
def test_the_last_call_is_told_once(
    serve: Serve,
    upstream: FakeUpstream,
    url: str,
    turns: int,
    notes: Callable[[Received], Iterable[Step]],
) -> None:
    upstream.script = model(notes)
    caller = Caller(serve(config(*(10, 4) if notes is noted else (60, 20)), MEMORY_URL=url), upstream)
    for _ in range(turns):
        caller.turn(settling=notes is noted)
    settle_turns(caller.proxy)
    caller.join()
    assert marks(caller.system_messages()) == Counter(
        [(kind, i) for kind in ("user", "answer") for i in range(turns)]
    )
    for _ in range(12):
        caller.check(caller.turn(settling=notes is noted))
        settle_turns(caller.proxy)


def settle_turns(proxy: ProxyServer) -> None:
    """Waits until all turns are written, whatever is under way in the background."""
    proxy.run(proxy.app.memory.recorder.drain())  # type: ignore[union-attr]


def test_each_call_is_its_own_block(caller: Caller) -> None:
    for _ in range(2):
        caller.turn()
    caller.join(informed=False)
    for _ in range(2):
        caller.turn()
    told = blocks(caller.system_messages())
    assert list(told) == ["earlier_conversation", "last_conversation"]
    for (_, text), calls in zip(told.items(), ([0, 1], [2, 3]), strict=True):
        assert set(marks([{"content": text}])) == {(kind, i) for kind in ("user", "answer") for i in calls}
    caller.join()
    for _ in range(8):
        caller.check(caller.turn())


def test_calls_that_the_client_tells_no_more_come_back(caller: Caller) -> None:
    for _ in range(3):
        caller.turn()
    caller.join()
    caller.check(caller.turn())
    caller.instructions = [INSTRUCTIONS]
    prompt = caller.turn()
    caller.check(prompt)
    assert list(blocks(prompt)) == ["conversation_so_far"]


def test_what_is_said_after_the_client_was_told_comes_back(caller: Caller) -> None:
    caller.turn()
    given = caller.system_messages()
    caller.turn()
    caller.join(informed=False)
    caller.instructions = [*given, INSTRUCTIONS]
    prompt = caller.turn(settling=False)
    found = marks(prompt)
    assert set(found) == {(kind, i) for kind in ("user", "answer") for i in range(2)} | {("user", 2)}


def test_a_call_of_another_session_of_that_name_is_not_taken_for_this_one(caller: Caller) -> None:
    caller.turn()
    given = caller.system_messages()
    assert caller.proxy.client.delete("/v1/memory/sessions/room").status_code == 204
    for _ in range(2):
        caller.join(informed=False)
        caller.instructions = [*given, INSTRUCTIONS]
        prompt = caller.turn()
    assert {("user", 1), ("answer", 1), ("user", 2)} <= set(marks(prompt))


def test_what_a_summary_tells_is_not_told_word_for_word_beside_it(caller: Caller) -> None:
    for _ in range(9):
        caller.turn()
    (told,) = blocks(caller.system_messages()).values()
    assert set(marks([{"content": told}]).values()) == {1}
    assert "notes: So far: " in told
