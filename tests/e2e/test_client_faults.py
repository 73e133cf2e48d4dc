"""Clients that do everything badly, against the server as a process: whom they hinder, and what is left."""

import json
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from statistics import median

import httpx2
import pytest

from tests.peers.fake_upstream import (
    DONE,
    END,
    HANG,
    HEAD,
    ROLE,
    FakeUpstream,
    Received,
    Step,
    by_default,
    chunk,
    delta,
)
from tests.peers.raw_client import RawClient, request, split
from tests.serving_process import ServingProcess, until
from tests.tried import Tried

pytestmark = pytest.mark.faults
CONFIG = """
listen: {port: "${PORT}", max_body: 1MB}
log: {level: warning}
memory: {sessions: "${MEMORY_URL}"}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines: {default: {upstreams: [main], request: [restore_history]}}
"""
QUICK = 1.0
"""Seconds that others may take meanwhile, on a machine that does other things as well."""
WORDS = delta(content="word " * 200)
HALF = b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{"

# What the model does, and whether a stream is wanted.
STAGES: dict[str, tuple[list[Step], bool]] = {
    "while the model is silent": ([HANG], True),
    "while it has said its role": ([HEAD, chunk(ROLE), HANG], True),
    "at the first token": ([HEAD, chunk(ROLE + delta(content="x")), HANG], True),
    "in mid-stream": (
        [HEAD, *[step for _ in range(900) for step in (chunk(delta(content="x")), 0.01)], END],
        True,
    ),
    "while a whole answer is awaited": ([HANG], False),
    "inside a whole answer": ([HALF, HANG], False),
}
HEARD = {"at the first token", "in mid-stream"}
HOST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
BEFORE = {
    "without a word": b"",
    "inside the request line": HOST[:9],
    "inside the head": HOST,
    "before the body": HOST + b"content-length: 99\r\n\r\n",
    "inside the body": HOST + b'content-length: 99\r\n\r\n{"messages": [',
    "inside a chunk": HOST + b"transfer-encoding: chunked\r\n\r\n20\r\n{",
}


@pytest.fixture(scope="module")
def model() -> Iterator[FakeUpstream]:
    with FakeUpstream() as fake:
        yield fake


@pytest.fixture(scope="module")
def serving(model: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingProcess]:
    folder = tmp_path_factory.mktemp("served")
    environ = {"UPSTREAM_BASE_URL": model.url, "MEMORY_URL": f"sqlite:{folder / 'memory.db'}"}
    with ServingProcess(folder, CONFIG, **environ) as process, ThreadPoolExecutor(16) as pool:
        # What is opened once and kept is no leak.
        list(pool.map(lambda each: process.chat(session=f"warm{each}", stream=True), range(64)))
        yield process


@pytest.fixture(autouse=True)
def leaves_nothing(serving: ServingProcess, model: FakeUpstream) -> Iterator[None]:
    """After each: no connection and no turn is left, and the next call is served."""
    model.script = by_default
    assert serving.client.get("/healthz").status_code == 200
    files = serving.open_files()
    yield
    model.script = by_default
    assert until(lambda: in_flight(serving) == 0)
    assert until(lambda: serving.open_files() <= files + 3), f"{serving.open_files()}, there were {files}"
    assert serving.client.post("/v1/chat/completions", json={"messages": []}).status_code < 500
    assert serving.chat(stream=True).content.endswith(DONE)
    assert "Traceback" not in serving.log


def in_flight(serving: ServingProcess) -> float:
    found = re.search(r"^turnkeeper_turns_in_flight (\S+)", serving.client.get("/metrics").text, re.MULTILINE)
    assert found
    return float(found[1])


def meanwhile(serving: ServingProcess, calls: int = 20) -> float:
    """How long the middle one of some calls takes; one may be slow because the machine stood still."""
    times = []
    for _ in range(calls):
        began = time.monotonic()
        assert serving.chat(stream=True).content.endswith(DONE)
        times.append(time.monotonic() - began)
    return median(times)


def by_words(endless: Callable[[], list[Step]]) -> Callable[[Received], list[Step]]:
    """The model goes on and on for whoever says so, and answers everybody else."""

    def script(asked: Received) -> list[Step]:
        return endless() if "on and on" in asked.body.decode() else list(by_default(asked))

    return script


def on_and_on() -> bytes:
    return request(stream=True, messages=[{"role": "user", "content": "on and on"}])


@contextmanager
def narrow(port: int) -> Iterator[socket.socket]:
    """A client with little room for what it does not read."""
    with closing(socket.socket()) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.settimeout(10)
        made.connect(("127.0.0.1", port))
        yield made


def test_readers_who_do_not_read_are_not_read_for(
    serving: ServingProcess, model: FakeUpstream, tried: Tried
) -> None:
    """The model has 40 MB for each of ten: what is not taken off our hands stays with it."""
    model.script = by_words(lambda: [HEAD, chunk(ROLE), *[chunk(WORDS * 32)] * 1250, chunk(DONE), END])
    assert serving.chat(stream=True).status_code == 200
    before = serving.megabytes()
    stalled = [narrow(serving.port) for _ in range(10)]
    clients = [each.__enter__() for each in stalled]
    for client in clients:
        client.sendall(on_and_on())
    time.sleep(1)
    assert meanwhile(serving) < QUICK
    grown = serving.megabytes() - before
    for each in stalled:
        each.__exit__(None, None, None)
    assert grown < 25, f"{grown:.0f} MB"
    tried("ten readers who do not read", f"held up, {grown:.0f} MB for all, others unhindered")


def test_a_slow_reader_gets_everything(serving: ServingProcess, model: FakeUpstream, tried: Tried) -> None:
    model.script = by_words(lambda: [HEAD, chunk(ROLE), *[chunk(WORDS)] * 300, chunk(DONE), END])
    got = bytearray()
    with narrow(serving.port) as client:
        client.sendall(on_and_on())
        while not got.endswith(b"0\r\n\r\n"):
            got += client.recv(8192)
            time.sleep(0.002)
    assert got.count(b"word word") > 0
    assert got.count(b"data: ") == 302
    tried("a slow reader", "all of it, as it was sent")


def test_an_answer_without_end_is_ended(serving: ServingProcess, model: FakeUpstream, tried: Tried) -> None:
    model.script = by_words(lambda: [HEAD, chunk(ROLE), *[chunk(WORDS * 64)] * 1250, chunk(DONE), END])
    before, size, last = serving.megabytes(), 0, b""
    asked = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": "on and on"}]}
    with serving.client.stream("POST", "/v1/chat/completions", json=asked) as got:
        for piece in got.iter_raw():
            size, last = size + len(piece), (last + piece)[-2000:]
    assert 63_000_000 < size < 65_000_000
    assert b"more than 64 MB" in last.rpartition(b"data: ")[2]
    tried("an answer of 80 MB", "an error event after 64 MB")
    assert until(lambda: serving.megabytes() - before < 100, 5)


def test_a_slow_sender_is_waited_for(serving: ServingProcess, tried: Tried) -> None:
    sent = request(stream=True)
    with ThreadPoolExecutor() as pool, RawClient(serving.port) as client:
        others = pool.submit(meanwhile, serving)
        for place in range(len(sent)):
            client.send(sent[place : place + 1])
            time.sleep(0.005)
        assert split(client.until(END))[0] == 200
        assert others.result() < QUICK
    tried("a request byte by byte", "200, others unhindered")


def test_five_hundred_slow_senders_hinder_nobody(serving: ServingProcess, tried: Tried) -> None:
    clients = [RawClient(serving.port) for _ in range(500)]
    for client in clients:
        client.send(BEFORE["inside the body"])
    assert meanwhile(serving) < QUICK
    for client in clients:
        client.socket.close()
    tried("500 unfinished requests", "others unhindered")


def test_a_half_closed_connection_is_a_client_that_reads_on(
    serving: ServingProcess, model: FakeUpstream, tried: Tried
) -> None:
    model.says(HEAD, chunk(ROLE + delta(content="x")), 0.5, chunk(delta(content="y") + DONE), END)
    with RawClient(serving.port) as client:
        client.send(request(stream=True))
        client.until(b'"x"')
        client.socket.shutdown(socket.SHUT_WR)
        assert b'"y"' in client.rest()
    model.says(HEAD, chunk(ROLE + delta(content="x")), HANG)
    with RawClient(serving.port) as client:
        client.send(request(stream=True))
        client.until(b'"x"')
        client.socket.shutdown(socket.SHUT_WR)
    assert model.last.closed.wait(10), "it has left by now"
    tried("a half-closed connection", "all of the answer, until it leaves")


def test_requests_that_are_sent_ahead_are_answered_in_their_order(
    serving: ServingProcess, model: FakeUpstream, tried: Tried
) -> None:
    def script(asked: Received) -> list[Step]:
        said = asked.json["messages"][-1]["content"]
        return [HEAD, 0.2 if said == "0" else 0.0, chunk(delta(content=f"<{said}>") + DONE), END]

    model.script = script
    with RawClient(serving.port) as client:
        client.send(
            b"".join(
                request(stream=True, messages=[{"role": "user", "content": str(each)}]) for each in range(6)
            )
        )
        got = b""
        while got.count(END) < 6:
            got += client.until(END)
    assert re.findall(rb"<(\d)>", got) == [b"%d" % each for each in range(6)]
    tried("six requests sent ahead", "answered in their order")


@pytest.mark.parametrize(
    ("name", "head", "status"),
    [
        ("a header of 1 MB", b"x-long: " + b"x" * 1_000_000 + b"\r\n", 431),
        ("100,000 headers", b"".join(b"x-%d: y\r\n" % each for each in range(100_000)), 431),
        ("a body said to have 1 GB", b"content-length: 1000000000\r\n\r\n", 413),
        ("two lengths", b"content-length: 3\r\ncontent-length: 4\r\n\r\n{}", 400),
        ("a length and chunks", b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n", 400),
    ],
)
def test_giants_are_refused(
    serving: ServingProcess, tried: Tried, name: str, head: bytes, status: int
) -> None:
    with RawClient(serving.port) as client:
        threading.Thread(target=_send, args=(client, HOST + head), daemon=True).start()
        got = client.until(b"}}")
    assert split(got)[0] == status
    assert json.loads(split(got)[2])["error"].keys() == {"message", "type", "param", "code"}
    tried(name, f"{status}")


def _send(client: RawClient, data: bytes) -> None:
    try:
        client.send(data)
    except OSError:
        return  # refused in the middle of it


def test_a_body_beyond_the_limit_in_chunks_is_refused(serving: ServingProcess, tried: Tried) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(30):
            yield b" " * 100_000

    got = httpx2.post(f"{serving.root}/v1/chat/completions", content=pieces(), timeout=10)
    assert got.status_code == 413
    tried("3 MB in chunks, 1 MB allowed", "413")


@pytest.mark.parametrize("rudely", [False, True])
@pytest.mark.parametrize("stage", BEFORE)
def test_a_hang_up_before_the_request_is_whole_asks_nobody(
    serving: ServingProcess, model: FakeUpstream, tried: Tried, stage: str, rudely: bool
) -> None:
    asked = len(model.requests)
    client = RawClient(serving.port)
    client.send(BEFORE[stage])
    time.sleep(0.02)
    leave(client.socket, rudely=rudely)
    time.sleep(0.02)
    assert len(model.requests) == asked
    tried(f"hang-up {stage}", "the model is not asked")


@pytest.mark.parametrize("rudely", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_a_hang_up_later_reaches_the_model(
    serving: ServingProcess, model: FakeUpstream, tried: Tried, stage: str, rudely: bool
) -> None:
    steps, stream = STAGES[stage]
    asked, session = len(model.requests), f"gone-{len(model.requests)}"
    model.says(*steps)
    client = RawClient(serving.port)
    client.send(request(stream=stream, extra=f"x-session-id: {session}\r\n"))
    assert until(lambda: len(model.requests) > asked)
    time.sleep(0.05)
    left = time.monotonic()
    leave(client.socket, rudely=rudely)
    assert model.last.closed.wait(10)
    assert model.last.closed_at - left < 5
    assert until(lambda: said_in(serving, session) == (["Hi", "x"] if stage in HEARD else []))
    tried(f"hang-up {stage}", "the model is let go")


def said_in(serving: ServingProcess, session: str) -> list[str]:
    """What a session holds; of an answer, its first letter."""
    got = serving.client.get(f"/v1/memory/sessions/{session}")
    return [
        one["content"][:1] if one["role"] == "assistant" else one["content"]
        for one in got.json().get("contents", [])
    ]


def leave(client: socket.socket, *, rudely: bool) -> None:
    if rudely:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def test_a_thousand_hang_ups_leave_nothing(
    serving: ServingProcess, model: FakeUpstream, tried: Tried
) -> None:
    chooser = random.Random(1)
    scripts = [steps for steps, stream in STAGES.values() if stream]
    model.script = lambda _: chooser.choice(scripts)

    def leaving(count: int) -> None:
        for _ in range(count // 50):
            clients = [RawClient(serving.port) for _ in range(50)]
            for client in clients:
                client.send(request(stream=True, extra=f"x-session-id: s{chooser.randrange(50)}\r\n"))
            for client in clients:
                time.sleep(chooser.random() / 500)
                leave(client.socket, rudely=chooser.random() < 0.5)
        assert until(lambda: in_flight(serving) == 0 and model.open <= 1, 5)

    leaving(500)
    files, megabytes = serving.open_files(), serving.megabytes()
    leaving(1000)
    assert until(lambda: serving.open_files() <= files + 2, 5)
    grown = serving.megabytes() - megabytes
    assert grown < 8, f"{grown:.1f} MB"
    tried("1,000 hang-ups", f"nothing is left, {grown:.1f} MB")


def test_bad_requests_again_and_again_leave_nothing(serving: ServingProcess, tried: Tried) -> None:
    bad = [
        HOST + b"x-long: " + b"x" * 200_000,
        HOST + b"content-length: 1000000000\r\n\r\n",
        b"\x16\x03\x01" * 99,
    ]

    def ask(count: int) -> None:
        for place in range(count):
            with RawClient(serving.port) as client, suppress(OSError):
                client.send(bad[place % len(bad)])
                client.socket.shutdown(socket.SHUT_WR)
                client.rest()

    ask(300)
    files, megabytes = serving.open_files(), serving.megabytes()
    ask(900)
    assert until(lambda: serving.open_files() <= files + 2, 5)
    grown = serving.megabytes() - megabytes
    assert grown < 8, f"{grown:.1f} MB"
    tried("900 requests that are none", "no file and no memory is left")
