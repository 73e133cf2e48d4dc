"""Limits without memory are counted in the process, and enforced."""

import time

import pytest

from tests.peers.fake_upstream import FakeUpstream
from tests.proxy_server import CONFIG, Serve
from tests.waiting import until


def test_requests_are_counted(serve: Serve, upstream: FakeUpstream) -> None:
    proxy = serve(CONFIG + "limits: {requests_per_minute: 2}\n")
    got = [proxy.chat() for _ in range(3)]
    assert [each.status_code for each in got] == [200, 200, 429]
    assert [each.headers["x-ratelimit-remaining-requests"] for each in got] == ["1", "0", "0"]
    assert not any("x-turnkeeper-degraded" in each.headers for each in got)
    assert len(upstream.requests) == 2


def test_tokens_are_counted(serve: Serve) -> None:
    proxy = serve(CONFIG + "limits: {tokens_per_minute: 7}\n")
    first = proxy.chat()
    assert (first.status_code, first.headers["x-ratelimit-remaining-tokens"]) == (200, "7")
    assert "x-turnkeeper-degraded" not in first.headers
    assert until(lambda: proxy.chat().status_code == 429)
    assert proxy.chat().json()["error"]["type"] == "tokens"


@pytest.mark.parametrize("step", [-1800.0, 1800.0])
def test_nobody_waits_for_a_clock_that_is_set(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    proxy, real = serve(CONFIG + "limits: {requests_per_minute: 1}\n"), time.time
    assert proxy.chat().status_code == 200
    monkeypatch.setattr(time, "time", lambda: real() + step)
    got = proxy.chat()
    assert got.status_code == 429
    assert 0 < int(got.headers["retry-after"]) <= 60
