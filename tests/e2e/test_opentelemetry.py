"""Turns as parts of a trace."""

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.observe.observation import TraceContext
from tests.peers.fake_upstream import CLOSE, FakeUpstream
from tests.peers.otlp_collector import Collector
from tests.proxy_server import CONFIG, ProxyServer, Serve

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
FORWARDED = CONFIG.replace("    model:", "    forward_headers: [traceparent]\n    model:")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collecting:
        yield collecting


@pytest.fixture
def traced(serve: Serve, collector: Collector) -> ProxyServer:
    return serve(FORWARDED + f"opentelemetry: {{endpoint: '{collector.endpoint}'}}\n")


def spans(proxy: ProxyServer, collector: Collector) -> dict[str, object]:
    """Returns the exported spans by name."""
    proxy.app.runtime.tracing._provider.force_flush()
    return {span.name: span for span in collector.spans}


def ended(proxy: ProxyServer) -> None:
    end = time.monotonic() + 3
    while "turnkeeper_turns_total{" not in proxy.client.get("/metrics").text and time.monotonic() < end:
        time.sleep(0.02)


def test_a_turn_continues_its_client_s_trace_and_hands_it_on(
    traced: ProxyServer, collector: Collector, upstream: FakeUpstream
) -> None:
    traced.chat(stream=True, headers={**HEADERS, "X-Session-Id": "room-1"})
    ended(traced)
    found = spans(traced, collector)
    assert set(found) == {"turn", "recall", "filters", "upstream"}
    assert {span.trace_id.hex() for span in found.values()} == {TRACE}
    assert found["turn"].parent_span_id.hex() == PARENT
    for stage in ("recall", "filters", "upstream"):
        assert found[stage].parent_span_id == found["turn"].span_id
        assert found["turn"].start_time_unix_nano <= found[stage].start_time_unix_nano
        assert found[stage].end_time_unix_nano <= found["turn"].end_time_unix_nano
    question = found["upstream"].span_id.hex()
    assert upstream.last.headers["traceparent"] == f"00-{TRACE}-{question}-01"
    known = {pair.key: pair.value.string_value for pair in found["turn"].attributes}
    assert known["gen_ai.conversation.id"] == "room-1"
    assert known["turnkeeper.state"] == "done"
    assert "Hello" not in str(found)


def test_without_a_client_s_trace_one_begins(
    traced: ProxyServer, collector: Collector, upstream: FakeUpstream
) -> None:
    traced.chat()
    ended(traced)
    found = spans(traced, collector)
    assert found["turn"].parent_span_id == b""
    assert found["turn"].trace_id.hex() in upstream.last.headers["traceparent"]


def test_who_wants_no_samples_gets_none(
    traced: ProxyServer, collector: Collector, upstream: FakeUpstream
) -> None:
    traced.chat(headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
    ended(traced)
    assert spans(traced, collector) == {}
    assert upstream.last.headers["traceparent"].endswith("-00")


def test_a_failure_is_one(traced: ProxyServer, collector: Collector, upstream: FakeUpstream) -> None:
    upstream.says(CLOSE)
    traced.chat()
    ended(traced)
    assert spans(traced, collector)["turn"].status.message == "upstream_broken"


def test_the_header_stays_here_where_it_is_not_let_through(
    serve: Serve, collector: Collector, upstream: FakeUpstream
) -> None:
    serve(CONFIG + f"opentelemetry: {{endpoint: '{collector.endpoint}'}}\n").chat(headers=HEADERS)
    assert "traceparent" not in upstream.last.headers


def test_untraced_the_client_s_own_header_is_forwarded(serve: Serve, upstream: FakeUpstream) -> None:
    serve(FORWARDED).chat(headers=HEADERS)
    assert upstream.last.headers["traceparent"] == HEADERS["traceparent"]


def test_a_dead_collector_costs_no_call_and_no_end(serve: Serve) -> None:
    proxy = serve(CONFIG + "opentelemetry: {endpoint: 'http://127.0.0.1:1/v1/traces'}\n")
    assert proxy.chat().status_code == 200


def test_nothing_of_it_is_loaded_unless_it_is_wanted() -> None:
    look = "import sys, proxy.cli; print([name for name in sys.modules if name.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@given(st.text() | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", fullmatch=True))
def test_no_header_makes_it_fail(header: str) -> None:
    trace = TraceContext.of(header)
    assert TraceContext.of(trace.traceparent).trace_id == trace.trace_id


@pytest.mark.parametrize(
    "header", [f"ff-{TRACE}-{PARENT}-01", f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01"]
)
def test_what_the_standard_forbids_begins_anew(header: str) -> None:
    assert TraceContext.of(header).parent_id is None
