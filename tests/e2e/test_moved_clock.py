"""The machine's clock is set back and forth while sessions are in use, and no words are lost."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.peers.fake_upstream import FakeUpstream, Received, Step, answer, completion
from tests.peers.redis_server import RedisServer, single
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import CONFIG, assistant_message, call, stored_entries, texts, user
from tests.tried import Tried

pytestmark = pytest.mark.faults
DAY = 86_400
# No step forward is longer than a session lives.
STEPS = [0, -3600, -3599, -3000, -DAY, -DAY + 1500, -DAY + 1400, -2 * DAY]


class Clock:
    """``time.time``, some seconds off."""

    def __init__(self, real: Callable[[], float]) -> None:
        self.off = 0.0
        self._real = real

    def __call__(self) -> float:
        return self._real() + self.off


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    moved = Clock(time.time)
    monkeypatch.setattr(time, "time", moved)
    return moved


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with single(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "redis"])
def proxy(request: pytest.FixtureRequest, serve: Serve, clock: Clock, tmp_path: Path) -> ProxyServer:
    if request.param == "redis":
        return serve(CONFIG, MEMORY_URL=f"{request.getfixturevalue('redis').url}?prefix={tmp_path.name}:")
    return serve(CONFIG, MEMORY_URL="memory:" if request.param == "memory" else f"sqlite:{tmp_path / 'm.db'}")


def echo(asked: Received) -> list[Step]:
    return answer(completion(f"Answer to {asked.json['messages'][-1]['content']}"))


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("shown", ["all", "the newest"])
def test_no_turn_is_lost(
    proxy: ProxyServer, upstream: FakeUpstream, clock: Clock, tried: Tried, numbered: bool, shown: str
) -> None:
    upstream.script = echo
    window = []
    wanted = []
    for turn, off in enumerate(STEPS, 1):
        clock.off = off
        asked = user(f"Word number {turn}", turn if numbered else None)
        window = [*window, asked] if shown == "all" else [*window[-2:], asked]
        assert call(proxy, *window).status_code == 200
        wanted += [("user", f"Word number {turn}"), ("assistant", f"Answer to Word number {turn}")]
        window.append(assistant_message(f"Answer to Word number {turn}", turn if numbered else None))
        assert texts(stored_entries(proxy)) == wanted
    tried("the clock is set back and forth by days", "every turn once, in its order")


def test_a_session_that_was_deleted_begins_anew_once_the_clock_was_set_back(
    proxy: ProxyServer, upstream: FakeUpstream, clock: Clock, tried: Tried
) -> None:
    upstream.script = echo
    call(proxy, user("Before"))
    assert stored_entries(proxy)
    assert proxy.client.delete("/v1/memory/sessions/s1").status_code in {200, 204}
    clock.off = -3600
    call(proxy, user("After"))
    assert texts(stored_entries(proxy)) == [("user", "After"), ("assistant", "Answer to After")]
    tried("the clock is set back behind a deletion", "the session begins anew")
