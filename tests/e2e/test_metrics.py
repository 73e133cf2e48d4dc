"""What Prometheus gets to see."""

import re
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.peers.fake_upstream import CLOSE, DONE, HANG, HEAD, ROLE, FakeUpstream, chunk, delta
from tests.proxy_server import CONFIG, ProxyServer, Serve

TURNS = "turnkeeper_turns_total"


def value(proxy: ProxyServer, name: str, /, **labels: str) -> float:
    """The sum of the samples of a name that bear these labels."""
    families = text_string_to_metric_families(proxy.client.get("/metrics").text)
    samples = (sample for family in families for sample in family.samples if sample.name == name)
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def reaches(proxy: ProxyServer, wanted: float, name: str, /, **labels: str) -> bool:
    end = time.monotonic() + 3
    while value(proxy, name, **labels) != wanted and time.monotonic() < end:
        time.sleep(0.02)
    return value(proxy, name, **labels) == wanted


def test_a_turn_is_counted_with_its_times_and_tokens(proxy: ProxyServer) -> None:
    proxy.chat(stream=True, stream_options={"include_usage": True})
    assert reaches(proxy, 1, TURNS, pipeline="default", outcome="done", status="200")
    assert value(proxy, "turnkeeper_overhead_seconds_count", pipeline="default") == 1
    assert 0 < value(proxy, "turnkeeper_overhead_seconds_sum") < 1
    for stage in ("recall", "filters", "upstream"):
        assert value(proxy, "turnkeeper_stage_seconds_count", stage=stage) == 1
    call = {"gen_ai_operation_name": "chat", "gen_ai_request_model": "fake"}
    assert value(proxy, "gen_ai_server_time_to_first_token_seconds_count", **call, upstream="main") == 1
    assert value(proxy, "gen_ai_client_operation_duration_seconds_count", **call, error_type="") == 1
    assert value(proxy, "gen_ai_client_token_usage_sum", gen_ai_token_type="input") == 5
    assert value(proxy, "gen_ai_client_token_usage_sum", gen_ai_token_type="output") == 2


def test_a_whole_answer_is_counted_with_its_tokens(proxy: ProxyServer) -> None:
    proxy.chat()
    assert reaches(proxy, 2, "gen_ai_client_token_usage_sum", gen_ai_token_type="output")


def test_failures_are_counted_by_status(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    proxy.chat(content=b"nonsense")
    upstream.says(CLOSE)
    proxy.chat()
    assert reaches(proxy, 1, TURNS, outcome="failed", status="400")
    assert reaches(proxy, 1, TURNS, outcome="failed", status="502")
    assert value(proxy, "gen_ai_client_operation_duration_seconds_count", error_type="upstream_broken") == 1


def test_a_stream_that_breaks_off_has_failed(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    upstream.says(HEAD, chunk(ROLE), chunk(delta(content="one")), CLOSE)
    assert DONE not in proxy.chat(stream=True).content
    assert reaches(proxy, 1, TURNS, outcome="failed", status="200")


def test_a_hang_up_is_no_failure(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    upstream.says(HEAD, chunk(ROLE), chunk(delta(content="one")), HANG)
    body = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
    with proxy.client.stream("POST", "/v1/chat/completions", json=body) as got:
        pieces = got.iter_bytes()
        next(pieces)
        assert value(proxy, "turnkeeper_turns_in_flight") == 1
    assert reaches(proxy, 1, TURNS, outcome="hangup", status="200")
    assert value(proxy, "turnkeeper_turns_in_flight") == 0


def test_an_id_of_no_use_is_counted_and_costs_nothing(agora: ProxyServer) -> None:
    assert agora.chat(headers={"X-User-Id": b"a\xc2\x85b", "X-Session-Id": "李雷".encode()}).is_success
    assert reaches(agora, 1, "turnkeeper_ignored_fields_total")


def test_filters_memory_and_ignored_fields_are_counted(agora: ProxyServer) -> None:
    messages = [{"role": "user", "content": "Hi", "timestamp": "noon", "metadata": {"source": 5}}]
    agora.chat(messages, headers={"X-Session-Id": "s"}, turn_id="seven")
    assert reaches(agora, 3, "turnkeeper_ignored_fields_total")
    assert value(agora, "turnkeeper_filter_seconds_count", filter="repair_history") == 1
    assert value(agora, "turnkeeper_memory_operation_seconds_count", operation="read", outcome="done") >= 1
    assert reaches(agora, 1, "turnkeeper_memory_operation_seconds_count", operation="write", outcome="done")
    assert value(agora, "turnkeeper_memory_queue_turns") == 0
    assert value(agora, "turnkeeper_lost_turns_total") == 0


def test_memory_that_is_dead_can_be_seen(serve: Serve) -> None:
    config = CONFIG + 'memory: {sessions: "${MEMORY_URL}"}\n'
    proxy = serve(config, MEMORY_URL="redis://127.0.0.1:1/0")
    got = proxy.chat(headers={"X-Session-Id": "s"})
    assert got.headers["x-turnkeeper-degraded"] == "memory"
    assert reaches(proxy, 1, "turnkeeper_degraded_turns_total", name="memory")
    assert reaches(proxy, 1, "turnkeeper_memory_failing")
    assert reaches(proxy, 1, "turnkeeper_memory_queue_turns")
    assert value(proxy, "turnkeeper_memory_operation_seconds_count", operation="read", outcome="failed") >= 1
    assert proxy.client.get("/readyz").json() == {"status": "degraded", "degraded": ["memory"]}


def test_an_upstream_that_keeps_failing_can_be_seen(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    upstream.says(CLOSE)
    for _ in range(8):
        proxy.chat()
    of = {"upstream": "main", "model": "fake"}
    assert reaches(proxy, 1, "turnkeeper_breaker_state", **of, state="open")
    assert value(proxy, "turnkeeper_breaker_state", **of, state="closed") == 0


TWO = """
upstreams:
  main: {base_url: "${UPSTREAM_BASE_URL}", retries: 1}
  reserve: {base_url: "practice:"}
pipelines:
  default: {upstreams: [main, reserve], model: m}
"""


def test_what_it_took_to_get_an_answer_is_counted(serve: Serve, upstream: FakeUpstream) -> None:
    upstream.says(CLOSE)
    proxy = serve(TWO)
    assert proxy.chat(stream=True).status_code == 200
    assert reaches(proxy, 1, "turnkeeper_fallbacks_total", pipeline="default", upstream="reserve")
    failed = {"upstream": "main", "code": "upstream_broken"}
    assert value(proxy, "turnkeeper_upstream_failures_total", **failed) == 2
    assert value(proxy, "turnkeeper_upstream_failures_total") == 2
    assert value(proxy, "turnkeeper_retries_total", upstream="main") == 1


def test_an_answer_at_once_took_nothing(proxy: ProxyServer) -> None:
    proxy.chat(stream=True)
    assert reaches(proxy, 1, TURNS)
    for name in ("upstream_failures", "retries", "fallbacks"):
        assert value(proxy, f"turnkeeper_{name}_total") == 0


def test_breakers_make_no_labels_without_end(proxy: ProxyServer) -> None:
    for number in range(60):
        proxy.chat(model=f"model-{number}")
    found = re.findall(
        'turnkeeper_breaker_state{model="(.*?)",state="closed"', proxy.client.get("/metrics").text
    )
    assert "other" in found
    assert len(found) == len(set(found)) == 51


def test_a_caller_cannot_make_labels_without_end(proxy: ProxyServer) -> None:
    for number in range(60):
        proxy.chat(model=f"model-{number}")
    found = set(re.findall('gen_ai_request_model="(.*?)"', proxy.client.get("/metrics").text))
    assert "other" in found
    assert len(found) == 51


def test_no_key_no_metrics(serve: Serve) -> None:
    proxy = serve('keys: "ops:s3cret,phone:chats:chat"\n' + CONFIG)
    assert proxy.client.get("/metrics").status_code == 401
    for key, status in (("s3cret", 200), ("chats", 403)):
        got = proxy.client.get("/metrics", headers={"Authorization": f"Bearer {key}"})
        assert got.status_code == status


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/healthz", 200),
        ("GET", "/readyz", 200),
        ("GET", "/metrics", 200),
        ("GET", "/v1/models", 200),
        ("POST", "/v1/explain", 400),
        ("GET", "/nowhere", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/healthz", 405),
        ("HEAD", "/healthz", 200),
        ("POST", "/pipelines/none/v1/chat/completions", 404),
    ],
)
def test_every_answer_says_what_it_took(proxy: ProxyServer, method: str, path: str, status: int) -> None:
    got = proxy.client.request(method, path)
    assert got.status_code == status
    assert re.fullmatch(r"request;dur=\d+\.\d\d", got.headers["server-timing"])
    assert got.headers["x-request-id"]


@pytest.mark.parametrize(
    ("headers", "content", "status"),
    [
        ({"Host": "evil.example"}, b"{}", 403),
        ({}, b" " * 2000, 413),
        ({"Content-Encoding": "br"}, b"{}", 415),
    ],
)
def test_refusals_say_it_too(serve: Serve, headers: dict[str, str], content: bytes, status: int) -> None:
    proxy = serve(CONFIG + "listen: {max_body: 1KB}\n")
    got = proxy.client.post("/v1/chat/completions", content=content, headers=headers)
    assert got.status_code == status
    assert got.headers["server-timing"].startswith("request;dur=")
    assert got.headers["x-request-id"]


def test_401_says_it_too(serve: Serve) -> None:
    got = serve('keys: "ops:s3cret"\n' + CONFIG).chat()
    assert got.status_code == 401
    assert got.headers["server-timing"].startswith("request;dur=")
    assert got.headers["x-request-id"]
