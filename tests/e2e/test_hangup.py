"""Law 10: a client that leaves is heard by the model, at once, and leaves nothing behind."""

import gc
import json
import random
import socket
import time
from pathlib import Path

import pytest

from tests.peers.fake_upstream import END, HANG, HEAD, ROLE, FakeUpstream, by_default, chunk, delta
from tests.proxy_server import ProxyServer
from tests.tried import Tried
from tests.waiting import until

pytestmark = pytest.mark.faults
WINDOWS = {
    "before the head": ([HANG], True),
    "before the first token": ([HEAD, chunk(ROLE), HANG], True),
    "mid-stream": ([HEAD, chunk(ROLE + delta(content="x")), HANG], True),
    "waiting for a whole answer": ([HANG], False),
    "inside a whole answer": ([b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{", HANG], False),
    "while it streams": (
        [HEAD, *[step for _ in range(400) for step in (chunk(delta(content="x")), 0.01)], END],
        True,
    ),
}


def request(port: int, *, stream: bool) -> socket.socket:
    body = json.dumps(
        {"model": "m", "stream": stream, "messages": [{"role": "user", "content": "Hi"}]}
    ).encode()
    client = socket.create_connection(("127.0.0.1", port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)
    return client


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("rudely", [False, True])
def test_a_hang_up_reaches_the_model_within_a_second(
    proxy: ProxyServer, upstream: FakeUpstream, tried: Tried, window: str, rudely: bool
) -> None:
    steps, stream = WINDOWS[window]
    upstream.says(*steps)
    # A machine may stand still for a second, but hardly three times in a row.
    assert any(let_go_after(proxy, upstream, stream=stream, rudely=rudely) < 1 for _ in range(3))
    tried(f"hang-up {window}{', with a reset' if rudely else ''}", "the model is let go within a second")


def let_go_after(proxy: ProxyServer, upstream: FakeUpstream, *, stream: bool, rudely: bool) -> float:
    """How many seconds after a client has left the model is let go."""
    asked = len(upstream.requests)
    client = request(proxy.port, stream=stream)
    assert until(lambda: len(upstream.requests) > asked)
    time.sleep(0.05)
    if rudely:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    left = time.monotonic()
    client.close()
    assert upstream.last.closed.wait(10)
    return upstream.last.closed_at - left


def test_two_hundred_hang_ups_leave_no_task_behind(
    proxy: ProxyServer, upstream: FakeUpstream, tried: Tried
) -> None:
    chooser = random.Random(1)
    scripts = [steps for steps, stream in WINDOWS.values() if stream]
    assert proxy.chat(stream=True).status_code == 200
    upstream.script = lambda _: chooser.choice(scripts)
    before = _open_files()
    tasks = proxy.tasks()
    for _ in range(4):
        clients = [request(proxy.port, stream=True) for _ in range(50)]
        for client in clients:
            time.sleep(chooser.random() / 500)
            client.close()
    assert until(lambda: upstream.open <= 1), f"{upstream.open} connections are still open"
    assert until(lambda: proxy.tasks() <= tasks), f"{proxy.tasks()} tasks, there were {tasks}"
    gc.collect()
    assert until(lambda: _open_files() <= before + 2), f"{_open_files()} files, there were {before}"
    upstream.script = by_default
    assert proxy.chat(stream=True).status_code == 200
    tried("200 hang-ups", "no connection, task or file is left")


def _open_files() -> int:
    files = Path("/proc/self/fd")
    return len(list(files.iterdir())) if files.exists() else 0
