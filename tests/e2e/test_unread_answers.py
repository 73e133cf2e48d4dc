"""A client that stops reading is disconnected; one that reads slowly is not."""

import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers.fake_upstream import DONE, END, HEAD, ROLE, FakeUpstream, chunk, delta
from tests.serving_process import LISTEN, ServingProcess, at_rest
from tests.waiting import until

CONFIG = (
    LISTEN
    + """
memory: {sessions: "memory:"}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", model: one}}
pipelines: {default: {upstreams: [main], request: []}}
"""
)
IMPATIENT = """
import proxy.server.process as listening
listening._UNREAD_TIMEOUT = 1500
from proxy.cli import main
main()
"""
PATIENCE = 1.5
WORD = "x" * 10_000


@pytest.fixture
def serving(tmp_path: Path, upstream: FakeUpstream) -> Iterator[ServingProcess]:
    process = ServingProcess(tmp_path, CONFIG, UPSTREAM_BASE_URL=upstream.url)
    process.command = [sys.executable, "-c", IMPATIENT, *process.command[3:]]
    with process:
        yield process


def says(upstream: FakeUpstream, words: int) -> None:
    upstream.says(HEAD, chunk(ROLE), *[chunk(delta(content=WORD))] * words, chunk(DONE), END)


def asking(serving: ServingProcess) -> socket.socket:
    """A client with little room, who has asked and read nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(10)
    client.connect(("127.0.0.1", serving.port))
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "stream": True}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nx-session-id: s\r\n"
    client.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
    return client


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel has no such limit")
def test_who_reads_nothing_any_more_is_let_go(serving: ServingProcess, upstream: FakeUpstream) -> None:
    says(upstream, 300)
    with asking(serving):
        assert until(lambda: upstream.requests)
        assert not at_rest(serving.client)
        assert until(lambda: at_rest(serving.client), 20)
        assert until(lambda: upstream.open == 0)
    held = serving.client.get("/v1/memory/sessions/s").json()["contents"]
    assert [line["role"] for line in held] == ["user", "assistant"]


def test_who_reads_slowly_gets_all(serving: ServingProcess, upstream: FakeUpstream) -> None:
    says(upstream, 80)
    said, began = b"", time.monotonic()
    with asking(serving) as client:
        while not said.endswith(END):
            said += client.recv(1 << 14)
            time.sleep(0.02)
    assert time.monotonic() - began > 2 * PATIENCE
    assert said.count(WORD.encode()) == 80
