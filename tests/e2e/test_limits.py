"""Limits, as callers meet them."""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from proxy.admission.quota import weight
from tests.peers.fake_upstream import (
    DONE,
    END,
    HANG,
    HEAD,
    ROLE,
    FakeUpstream,
    answer,
    chunk,
    completion,
    delta,
)
from tests.peers.redis_server import RedisServer, stopped
from tests.proxy_server import CONFIG, ProxyServer, Serve
from tests.waiting import until

MEMORY = 'memory: {sessions: "${MEMORY_URL}", deadline: "${DEADLINE:-5s}"}\n'
KEYS = 'keys: "acme:one,acme:other,globex:two"\n' + MEMORY + CONFIG
ONE, OTHER, TWO = ({"Authorization": f"Bearer {key}"} for key in ("one", "other", "two"))


def settled(proxy: ProxyServer) -> None:
    """All turns have ended, and what they took is counted."""
    quota = proxy.app.runtime.quota
    assert quota

    async def at_rest() -> bool:
        return not (quota._open.total() or quota._spending)

    assert until(lambda: proxy.run(at_rest()))


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with contextlib.closing(RedisServer(tmp_path_factory.mktemp("redis"))) as server:
        yield server


@pytest.fixture(params=["process", "redis"])
def limited(request: pytest.FixtureRequest, serve: Serve) -> Callable[[str], ProxyServer]:
    """Serves with limits, counted in the process or on a Redis."""
    where = "memory:"
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis")
        where = f"{server.url}?prefix={time.monotonic_ns()}:"
    return lambda limits: serve(KEYS + f"limits: {limits}\n", MEMORY_URL=where)


def refused(got: httpx2.Response, kind: str) -> bool:
    error = got.json()["error"]
    assert got.status_code == 429
    assert error["type"] == kind
    assert error["code"] == "rate_limit_exceeded"
    assert set(error) == {"message", "type", "param", "code"}
    assert 1 <= int(got.headers["retry-after"]) <= 60
    return True


def test_requests_are_counted_by_the_key_s_name(limited: Callable[[str], ProxyServer]) -> None:
    proxy = limited("{requests_per_minute: 2}")
    first, second = proxy.chat(headers=ONE), proxy.chat(headers=OTHER)
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert [got.headers["x-ratelimit-remaining-requests"] for got in (first, second)] == ["1", "0"]
    assert re.fullmatch(r"1m0s|5\d(\.\d+)?s", first.headers["x-ratelimit-reset-requests"])
    third = proxy.chat(headers=ONE)
    assert refused(third, "requests")
    assert third.headers["x-ratelimit-remaining-requests"] == "0"
    assert proxy.chat(headers=TWO).status_code == 200


def test_tokens_are_counted_once_they_are_known(limited: Callable[[str], ProxyServer]) -> None:
    proxy = limited("{tokens_per_minute: 10}")
    assert proxy.chat(headers=ONE).headers["x-ratelimit-remaining-tokens"] == "10"
    settled(proxy)
    got = proxy.chat(headers=ONE)
    assert got.headers["x-ratelimit-remaining-tokens"] == "3"
    settled(proxy)
    assert refused(proxy.chat(headers=ONE), "tokens")


def test_servers_on_one_redis_count_together(serve: Serve, redis: RedisServer) -> None:
    config = KEYS + "limits: {requests_per_minute: 1}\n"
    where = f"{redis.url}?prefix=together:"
    one, other = serve(config, MEMORY_URL=where), serve(config, MEMORY_URL=where)
    assert one.chat(headers=ONE).status_code == 200
    assert refused(other.chat(headers=ONE), "requests")


LIMITED = KEYS + "limits: {requests_per_minute: 2, tokens_per_minute: 1000}\n"


@pytest.mark.parametrize("place", ["redis://127.0.0.1:1/0", "redis://10.255.255.1:6379/0"])
def test_with_a_dead_redis_each_process_counts_for_itself_and_nobody_waits(serve: Serve, place: str) -> None:
    proxy = serve(LIMITED, MEMORY_URL=place, DEADLINE="50ms")
    began = time.monotonic()
    got = [proxy.chat(headers=ONE) for _ in range(3)]
    assert time.monotonic() - began < 2
    assert [each.status_code for each in got] == [200, 200, 429]
    assert [each.headers["x-ratelimit-remaining-requests"] for each in got] == ["1", "0", "0"]
    assert all("limits" in each.headers["x-turnkeeper-degraded"] for each in got)
    assert proxy.chat(headers=TWO).status_code == 200
    assert "limits" in proxy.client.get("/readyz").json()["degraded"]


def test_tokens_are_counted_while_redis_is_away(serve: Serve) -> None:
    limits = "limits: {tokens_per_minute: 7}\n"
    proxy = serve(KEYS + limits, MEMORY_URL="redis://127.0.0.1:1/0", DEADLINE="50ms")
    assert proxy.chat(headers=ONE).status_code == 200
    settled(proxy)
    assert refused(proxy.chat(headers=ONE), "tokens")


def limit_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for each in caplog.records if (line := each.getMessage()).startswith("Limits ")]


def test_redis_counts_again_once_it_answers_and_the_log_is_told_once(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.closing(RedisServer(tmp_path)) as redis:
        proxy = serve(LIMITED, MEMORY_URL=redis.url, DEADLINE="50ms")
        assert proxy.chat(headers=ONE).headers["x-ratelimit-remaining-requests"] == "1"
        with stopped(redis):
            assert [proxy.chat(headers=ONE).status_code for _ in range(3)] == [200, 200, 429]
            time.sleep(1.2)  # longer than it is left alone
            assert proxy.chat(headers=ONE).status_code == 429
        assert until(lambda: "limits" not in proxy.client.get("/readyz").json()["degraded"])
        got = proxy.chat(headers=TWO)
        assert got.status_code == 200
        assert "x-turnkeeper-degraded" not in got.headers
        assert redis.ask("KEYS", "*globex*")
    alone, again = limit_lines(caplog)
    assert alone.startswith("Limits are counted in this process alone: ")
    assert alone.endswith(("the store does not count in time", "Redis took longer than 50 ms"))
    assert again == "Limits are counted on Redis again"


def test_a_redis_that_takes_no_writes_counts_nothing(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.closing(RedisServer(tmp_path, "maxmemory 1", "maxmemory-policy noeviction")) as redis:
        proxy = serve(LIMITED, MEMORY_URL=redis.url)
        assert proxy.chat(headers=ONE).status_code == 200
        time.sleep(1.2)
        assert [proxy.chat(headers=ONE).status_code for _ in range(2)] == [200, 429]
        assert len(limit_lines(caplog)) == 1


def test_turns_at_once_are_bounded_and_a_place_comes_back(serve: Serve, upstream: FakeUpstream) -> None:
    proxy = serve(KEYS + "limits: {concurrent_streams: 2}\n")
    upstream.says(HEAD, chunk(ROLE), chunk(delta(content="one")), HANG)
    body = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
    for _ in range(3):  # those who hang up give their places back
        with ThreadPoolExecutor() as pool, httpx2.Client(base_url=proxy.root, timeout=5) as client:

            def begun(_: int, client: httpx2.Client = client) -> httpx2.Response:
                request = client.build_request("POST", "/v1/chat/completions", json=body, headers=ONE)
                return client.send(request, stream=True)

            streams = list(pool.map(begun, range(2)))
            assert refused(proxy.chat(headers=ONE), "streams")
            assert proxy.chat(headers=TWO, stream=True, content=b"{").status_code == 400
            for stream in streams:
                stream.close()
        settled(proxy)
    upstream.says(HEAD, chunk(ROLE), chunk(delta(content="one")), chunk(DONE), END)
    assert proxy.chat(headers=ONE, stream=True).status_code == 200


def test_failures_give_their_places_back(serve: Serve, upstream: FakeUpstream) -> None:
    proxy = serve(KEYS + "limits: {concurrent_streams: 1}\n")
    upstream.says(*answer({"error": {"message": "no"}}, status=500))
    assert [proxy.chat(headers=ONE).status_code for _ in range(3)] == [500] * 3
    assert proxy.chat(headers=ONE, content=b"nonsense").status_code == 400


def test_ours_take_the_place_of_the_upstream_s(serve: Serve, upstream: FakeUpstream) -> None:
    proxy = serve(KEYS + "limits: {requests_per_minute: 7}\n")
    upstream.says(*answer(completion(), headers="x-ratelimit-remaining-requests: 99\r\nx-ratelimit-x: 1\r\n"))
    got = proxy.chat(headers=ONE)
    assert got.headers.get_list("x-ratelimit-remaining-requests") == ["6"]
    assert got.headers["x-ratelimit-x"] == "1"


def test_without_limits_there_are_no_headers_of_ours(serve: Serve) -> None:
    assert "x-ratelimit-limit-requests" not in serve(KEYS).chat(headers=ONE).headers


def test_openai_s_client_understands(serve: Serve) -> None:
    proxy = serve(KEYS + "limits: {requests_per_minute: 1}\n")
    client = openai.OpenAI(base_url=proxy.url, api_key="one", max_retries=0)
    client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "Hi"}])
    with pytest.raises(openai.RateLimitError) as refusal:
        client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "Hi"}])
    assert refusal.value.code == "rate_limit_exceeded"
    assert refusal.value.type == "requests"


def test_who_is_refused_is_counted(serve: Serve) -> None:
    proxy = serve(KEYS + "limits: {requests_per_minute: 1}\n")
    for _ in range(3):
        proxy.chat(headers=ONE)
    metrics = proxy.client.get("/metrics", headers=ONE).text
    assert 'turnkeeper_refused_requests_total{limit="requests"} 2.0' in metrics
    assert 'turnkeeper_turns_total{outcome="failed",pipeline="default",status="429"} 2.0' in metrics


def test_an_explanation_counts_by_its_size(limited: Callable[[str], ProxyServer]) -> None:
    proxy = limited("{requests_per_minute: 10}")
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * 150_000}]}

    def explained() -> httpx2.Response:
        return proxy.client.post("/v1/explain", json=body, headers=ONE)

    first = explained()
    assert first.status_code == 200
    assert first.headers["x-ratelimit-remaining-requests"] == "7", "its body is 3"
    settled(proxy)
    size = len(first.content) + 150_000
    weight = -(-size // 64_000)
    assert proxy.chat(headers=ONE).headers["x-ratelimit-remaining-requests"] == str(max(0, 9 - weight))
    while (got := explained()).status_code == 200:
        settled(proxy)
    assert refused(got, "requests")
    assert refused(proxy.chat(headers=ONE), "requests")
    assert proxy.chat(headers=TWO).status_code == 200


def test_the_memory_api_counts_imports_exports_and_searches_by_their_size(
    serve: Serve, tmp_path: Path
) -> None:
    proxy = serve(KEYS + "limits: {requests_per_minute: 100}\n", MEMORY_URL=f"sqlite:{tmp_path / 'm.db'}")
    text = "x" * 90_000
    session = {"user": "ann", "contents": [{"role": "user", "content": text, "turn_id": i} for i in range(3)]}
    left = 100

    def asked(method: str, path: str, **body: Any) -> None:
        """It counts as one for each 64 KB, and says what its body leaves."""
        nonlocal left
        response = proxy.client.request(method, f"/v1/memory/{path}", headers=ONE, **body)
        assert response.status_code in {200, 201}, response.text
        sent = len(response.request.content)
        assert response.headers["x-ratelimit-remaining-requests"] == str(left - weight(sent))
        left -= weight(sent + len(response.content))
        settled(proxy)

    asked("POST", "sessions", json={"id": "one", **session})
    asked("PUT", "sessions/two", json=session)
    asked("GET", "sessions/two")
    asked("GET", "users/ann/export")
    asked("POST", "search", json={"user": "ann", "query": "x"})
    assert left < 100 - 4 * weight(270_000)
    while left > 0:
        asked("GET", "sessions/two")
    for method, path in (("GET", "sessions/two"), ("GET", "users/ann/export"), ("POST", "search")):
        assert refused(proxy.client.request(method, f"/v1/memory/{path}", headers=ONE, json={}), "requests")
    assert refused(proxy.client.put("/v1/memory/sessions/two", headers=ONE, json=session), "requests")
    assert refused(proxy.client.post("/v1/memory/sessions", headers=ONE, json=session), "requests")
    assert refused(proxy.chat(headers=ONE), "requests")
    assert proxy.client.get("/v1/memory/sessions/two", headers=TWO).status_code == 404
    assert proxy.client.delete("/v1/memory/users/ann", headers=ONE).status_code == 204, "a right, and no load"
