"""A model that refuses summaries or facts is asked ever more rarely, and the log says so once."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxy.background import backoff
from proxy.circuit import Backoff
from proxy.memory.session import decode
from proxy.memory.stores.store import Key
from proxy.server.reload import Reload
from proxy.settings.load import load
from tests.e2e.conftest import Address
from tests.long_call import LongCall, config, is_notes, model
from tests.peers.fake_upstream import FakeUpstream, answer
from tests.proxy_server import ProxyServer
from tests.waiting import until

GAUGE = 'turnkeeper_background_failing{work="summaries"}'
SESSIONS = [f"s{number}" for number in range(8)]
REFUSALS = {
    status: answer({"error": {"message": "No", "type": "x", "param": None, "code": None}}, status)
    for status in (400, 401, 404)
}


class Served:
    """A proxy whose configuration can be read again, and what its model is asked."""

    def __init__(self, proxy: ProxyServer, upstream: FakeUpstream, reload: Callable[[], None]) -> None:
        self.proxy, self.upstream, self.reload = proxy, upstream, reload

    def talks(self, session: str, turns: int = 4) -> LongCall:
        call = LongCall(self.proxy, self.upstream, session=session)
        for _ in range(turns):
            call.turn()
        return call

    def asked(self) -> int:
        return sum(map(is_notes, list(self.upstream.requests)))

    def failing(self) -> bool:
        return f"{GAUGE} 1.0" in self.proxy.client.get("/metrics").text

    def digests(self, session: str) -> list[bool]:
        held = self.proxy.run(self.proxy.app.memory.store.read(Key("default", session)))  # type: ignore[union-attr]
        return [one.extractive for one in decode(held.blob).summaries]


@pytest.fixture(params=["sqlite", "redis"])
def served(
    request: pytest.FixtureRequest,
    address: Address,
    upstream: FakeUpstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Served]:
    # One second for five minutes, and the rest to the same scale.
    monkeypatch.setattr(backoff, "_JOB", Backoff(0.5, 1.0))
    monkeypatch.setattr(backoff, "_SESSION", Backoff(0.05, 1.0))
    path = tmp_path / "config.yaml"
    path.write_text(config(6, 2))
    environ = {"UPSTREAM_BASE_URL": upstream.url, "MEMORY_URL": address(request.param)}
    with ProxyServer(path, environ) as proxy:
        again = Reload(proxy.app, load(path, environ), path, environ)
        yield Served(proxy, upstream, lambda: proxy.run(again.reload()))


def said_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.getMessage().startswith("summaries:")]


@pytest.mark.parametrize("status", REFUSALS)
def test_it_is_asked_ever_less_and_digests_stand_in(
    served: Served, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    served.upstream.script = model(lambda _: REFUSALS[status])
    with caplog.at_level(logging.INFO, "turnkeeper"):
        for session in SESSIONS:
            served.talks(session)
        assert until(lambda: all(served.digests(session) == [True] for session in SESSIONS))
        assert served.failing()
        asked = served.asked()
        # Once for all in each pause, not for each of them.
        assert not until(lambda: served.asked() > asked + 4, seconds=3), (
            "once for all in a pause, not for each"
        )
        served.upstream.script = model()
        assert until(lambda: all(served.digests(session) == [False] for session in SESSIONS))
    assert not served.failing()
    first, last = said_of(caplog)
    assert f"The upstream answered {status}." in first
    assert "works again" in last


def test_who_was_told_of_it_is_asked_at_once_when_the_configuration_is_read_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "_JOB", Backoff(300.0, 300.0))
    served.upstream.script = model(lambda _: REFUSALS[401])
    for session in SESSIONS:
        served.talks(session)
    assert until(lambda: all(served.digests(session) == [True] for session in SESSIONS))
    served.upstream.script = model()
    asked = served.asked()
    assert not until(lambda: served.asked() > asked + 1, seconds=1)
    served.reload()
    assert until(lambda: all(served.digests(session) == [False] for session in SESSIONS))


def test_it_is_left_alone_for_as_long_as_it_asks(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "_SESSION", Backoff(0.05, 300.0))
    busy = answer({"error": {"message": "Busy"}}, 429, "retry-after: 2\r\n")
    served.upstream.script = model(lambda _: busy)
    served.talks("s1")
    assert until(lambda: served.asked() == 1)
    served.upstream.script = model()
    assert not until(lambda: served.asked() > 1, seconds=1.5)
    assert until(lambda: served.digests("s1") == [False])
