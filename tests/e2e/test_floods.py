"""An upstream that says nothing, a million times, costs the other callers no time."""

import gzip
import threading
import time

import httpx2
import pytest

from tests.peers.fake_upstream import (
    DONE,
    END,
    HEAD,
    ROLE,
    FakeUpstream,
    Step,
    answer,
    chunk,
    completion,
    delta,
)
from tests.proxy_server import ProxyServer, Serve

CONFIG = """
memory: {sessions: "memory:"}
upstreams:
  main: {base_url: "${UPSTREAM_BASE_URL}"}
pipelines:
  default: {upstreams: [main], request: []}
  filtered: {upstreams: [main], request: [], answer: [speakable]}
"""
PACKED = HEAD.replace(b"transfer-encoding", b"content-encoding: gzip\r\ntransfer-encoding")
LONGEST = 1.5


def flood(noise: bytes, times: int) -> list[Step]:
    """An answer, and behind its first word the same over and over."""
    return [HEAD, chunk(ROLE + delta(content="one")), *[chunk(noise)] * times, chunk(DONE), END]


FLOODS: dict[str, list[Step]] = {
    "blank lines": flood(b"\n" * 60_000, 200),
    "carriage returns": flood(b"\r" * 60_000, 200),
    "empty chunks": flood(b"data: {}\n\n" * 6_000, 100),
    "a compressed bomb": [PACKED, chunk(gzip.compress(b"data: {}\n\n" * 1_500_000)), END],
}
WORDS = "\n" * 2_000_000
LONG_ANSWERS: dict[str, list[Step]] = {
    "whole": answer(completion(WORDS)),
    "one event": [HEAD, chunk(ROLE + delta(content="one")), chunk(delta(content=WORDS) + DONE), END],
    "the first event": [HEAD, chunk(delta(content="one" + WORDS) + DONE), END],
}


class Visitor(threading.Thread):
    """A client that asks again and again; ``longest`` is its longest wait in seconds."""

    def __init__(self, proxy: ProxyServer) -> None:
        super().__init__()
        self.longest = 0.0
        self._proxy = proxy
        self._done = threading.Event()

    def run(self) -> None:
        with httpx2.Client(base_url=self._proxy.root, timeout=60) as client:
            while not self._done.is_set():
                began = time.monotonic()
                client.get("/healthz")
                self.longest = max(self.longest, time.monotonic() - began)
                self._done.wait(0.01)

    def stop(self) -> None:
        self._done.set()
        self.join()


@pytest.mark.parametrize("pipeline", ["default", "filtered"])
@pytest.mark.parametrize("noise", FLOODS)
def test_nobody_else_waits(serve: Serve, upstream: FakeUpstream, noise: str, pipeline: str) -> None:
    proxy = serve(CONFIG)
    upstream.says(*FLOODS[noise])
    assert longest_wait(proxy, pipeline, stream=True) < LONGEST


@pytest.mark.parametrize("form", LONG_ANSWERS)
def test_nor_does_he_for_filters(serve: Serve, upstream: FakeUpstream, form: str) -> None:
    proxy = serve(CONFIG)
    upstream.says(*LONG_ANSWERS[form])
    assert longest_wait(proxy, "filtered", stream=form != "whole") < LONGEST


def longest_wait(proxy: ProxyServer, pipeline: str, *, stream: bool) -> float:
    """How long a visitor waits at most, from a turn's beginning until it is written down."""
    visitor = Visitor(proxy)
    visitor.start()
    proxy.client.timeout = 60
    with proxy.client.stream(
        "POST",
        f"/pipelines/{pipeline}/v1/chat/completions",
        json={"model": "fake", "messages": [{"role": "user", "content": "Hi"}], "stream": stream},
        headers={"X-Session-Id": "flooded"},
    ) as got:
        for _ in got.iter_raw():
            pass
    while proxy.app.memory and proxy.app.memory.recorder.pending:
        time.sleep(0.02)
    visitor.stop()
    return visitor.longest
