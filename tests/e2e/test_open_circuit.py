"""Models that fail for seconds are left alone, though there is no other: one call a second asks each."""

import time
from collections.abc import Iterator

import pytest

from proxy.circuit import Backoff
from tests.peers.fake_upstream import FakeUpstream, answer, by_default
from tests.proxy_server import ProxyServer, Serve
from tests.waiting import until

CONFIG = """
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", retries: 1}}
pipelines: {default: {upstreams: [main]}}
"""
TWO = """
upstreams:
  main: {base_url: "${UPSTREAM_BASE_URL}", retries: 1}
  reserve: {base_url: "${RESERVE}", retries: 1}
pipelines: {default: {upstreams: [main, reserve]}}
"""
BROKEN = answer({"error": {"message": "Out of order."}}, 500)


@pytest.fixture
def reserve() -> Iterator[FakeUpstream]:
    with FakeUpstream() as fake:
        yield fake


@pytest.fixture
def long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the calls of each second finds out in time that a model is well."""
    monkeypatch.setattr("proxy.upstream.target._BACKOFF", Backoff(60, 60))


@pytest.fixture
def long_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the test takes is a moment."""
    monkeypatch.setattr("proxy.upstream.routing._GRACE", 60)


def opened(serve: Serve, upstream: FakeUpstream) -> ProxyServer:
    """A server whose one upstream has failed until its circuit opened."""
    proxy = serve(CONFIG)
    upstream.says(*BROKEN)
    assert until(lambda: proxy.chat().status_code == 503, 10)
    return proxy


def test_calls_are_refused_at_once_and_told_when_to_come_back(serve: Serve, upstream: FakeUpstream) -> None:
    proxy = opened(serve, upstream)
    asked, began, statuses = len(upstream.requests), time.monotonic(), list[int]()
    while len(statuses) < 20:
        got = proxy.chat()
        statuses.append(got.status_code)
        if got.status_code == 503:
            assert got.headers["retry-after"] == "1"
            assert got.json()["error"] == {
                "message": "The upstream 'main' keeps failing, and is asked once a second; try again.",
                "type": "upstream_error",
                "param": None,
                "code": "upstream_unavailable",
            }
    probes = len(upstream.requests) - asked
    assert probes <= 1 + (time.monotonic() - began)
    assert statuses.count(503) == 20 - probes, "each other call is answered without the upstream"


@pytest.mark.usefixtures("long_moment")
def test_failures_of_a_moment_keep_no_call_off(serve: Serve, upstream: FakeUpstream) -> None:
    proxy = serve(CONFIG)
    upstream.says(*BROKEN)
    began = time.monotonic()
    assert {proxy.chat().status_code for _ in range(20)} == {500}, "the upstream's own error"
    assert len(upstream.requests) <= 20 + 5 + (time.monotonic() - began), (
        "after the fifth failure one call a second tries again"
    )
    upstream.script = by_default
    assert proxy.chat().status_code == 200


@pytest.mark.usefixtures("long_pause")
def test_it_is_well_within_a_second(serve: Serve, upstream: FakeUpstream) -> None:
    proxy = opened(serve, upstream)
    upstream.script = by_default
    assert until(lambda: proxy.chat().status_code == 200, 10)
    assert [proxy.chat().status_code for _ in range(10)] == [200] * 10


@pytest.mark.usefixtures("long_pause")
def test_where_all_of_several_fail_each_is_asked_once_a_second(
    serve: Serve, upstream: FakeUpstream, reserve: FakeUpstream
) -> None:
    proxy = serve(TWO, RESERVE=reserve.url)
    for each in (upstream, reserve):
        each.says(*BROKEN)
    assert until(lambda: proxy.chat().status_code == 503, 10)
    asked = [len(upstream.requests), len(reserve.requests)]
    began, statuses = time.monotonic(), list[int]()
    while len(statuses) < 20:
        statuses.append(proxy.chat().status_code)
    most = 1 + (time.monotonic() - began)
    assert len(upstream.requests) - asked[0] <= most
    assert len(reserve.requests) - asked[1] <= most
    assert statuses.count(503) >= 20 - 2 * most
    reserve.script = by_default
    assert until(lambda: proxy.chat().status_code == 200, 10)
    assert [proxy.chat().status_code for _ in range(10)] == [200] * 10


@pytest.mark.usefixtures("long_moment")
def test_failures_of_a_moment_at_all_of_several_keep_no_call_off(
    serve: Serve, upstream: FakeUpstream, reserve: FakeUpstream
) -> None:
    proxy = serve(TWO, RESERVE=reserve.url)
    for each in (upstream, reserve):
        each.says(*BROKEN)
    assert {proxy.chat().status_code for _ in range(12)} == {500}, "an upstream's own error"
    reserve.script = by_default
    assert proxy.chat().status_code == 200
