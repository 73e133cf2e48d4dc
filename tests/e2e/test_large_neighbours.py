"""Beside very large requests, the turns of other callers are durable, and are not lost."""

import json
import re
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Self

import httpx2
import pytest

from tests.peers.fake_upstream import DONE, END, HEAD, FakeUpstream, Received, by_default, chunk, delta
from tests.remembering import user
from tests.serving_process import LISTEN, ServingProcess
from tests.waiting import until

pytestmark = pytest.mark.faults
CONFIG = (
    LISTEN.replace("drain", "grace: 3s, drain")
    + """
memory:
  sessions: "sqlite:${FOLDER}/sessions.db"
  archive: {url: "sqlite:${FOLDER}/archive.db", keep: forever}
traces: {keep: 50, content: true}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", total: 60s}}
pipelines:
  default: {upstreams: [main], request: [repair_history, restore_history]}
  redacted: {upstreams: [main], request: [restore_history, redact: {kinds: [card, iban]}]}
"""
)
WORDS = " ".join(f"word{i % 5000}" for i in range(1_500_000))
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 14_000_000}}
CALL = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
CONTENTS: Mapping[str, Callable[[], Any]] = {
    "texts of 15 MB": lambda: WORDS[:15_000_000],
    "turns as large as memory takes in": lambda: WORDS[:240_000],
    "pictures of 14 MB": lambda: [PICTURE, {"type": "text", "text": "What is this?"}],
    "answers in one delta of 10 MB": lambda: "Say it in one delta.",
    "answers of 30 MB": lambda: "Say it all.",
    "500,000 parts": lambda: [{"type": "text", "text": "x"}] * 500_000,
    "150,000 tool calls": lambda: {"role": "assistant", "tool_calls": [{"id": "c", **CALL}] * 150_000},
    "700,000 metadata keys": lambda: user("Hi") | {"metadata": {f"k{i}": i for i in range(700_000)}},
    "a megabyte of digits, redacted": lambda: "4111 " * 200_000,
}
LOST = re.compile(r"(\d+) turns could not be written")
SMALL = 20


def respond(request: Received) -> Any:
    if b"in one delta" in request.body:
        return (HEAD, chunk(delta(content=WORDS[:10_000_000])), chunk(DONE), END)
    if b"Say it all" in request.body:
        return (HEAD, *[chunk(delta(content=WORDS[:100_000]))] * 300, chunk(DONE), END)
    return by_default(request)


class Crowd:
    """Callers who send the same large content, or message, each in sessions of its own, until it is enough.

    ``remembered`` counts, by session, the turns that were answered whole and with memory.
    """

    def __init__(self, root: str, content: Any, callers: int = 4) -> None:
        self.remembered: Counter[str] = Counter()
        self.answered = 0
        # Made once: to make it each time would hold up the small ones, which are sent from here, too.
        self._root, self._body = root, body_of(content, stream=True)
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._talk, args=(i,)) for i in range(callers)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _talk(self, caller: int) -> None:
        turn = 0
        while not self._over.is_set():
            session = f"large-{caller}-{turn}"
            turn += 1
            try:
                got = post(self._root, session, self._body)
            except httpx2.TransportError:
                return  # the server has ended
            whole = got.status_code == 200 and b"[DONE]" in got.content
            self.answered += whole or got.status_code == 413
            self.remembered[session] += whole and "x-turnkeeper-degraded" not in got.headers


def body_of(content: Any, **fields: Any) -> bytes:
    message = content if isinstance(content, dict) else user(content)
    return json.dumps({"model": "fake", "messages": [message], **fields}).encode()


def post(root: str, session: str, body: bytes) -> httpx2.Response:
    named = {"X-Session-Id": session, "Content-Type": "application/json"}
    return httpx2.post(f"{root}/v1/chat/completions", content=body, headers=named, timeout=60, verify=False)


def stored(folder: Path) -> set[str]:
    """The sessions that a second program finds in the file."""
    with closing(sqlite3.connect(f"file:{folder / 'sessions.db'}?mode=ro", uri=True, timeout=20)) as file:
        return {bytes(name).decode() for (name,) in file.execute("SELECT session FROM turnkeeper_sessions")}


@pytest.fixture
def server(tmp_path: Path, upstream: FakeUpstream) -> Iterator[ServingProcess]:
    upstream.script = respond
    with ServingProcess(tmp_path, CONFIG, FOLDER=str(tmp_path), UPSTREAM_BASE_URL=upstream.url) as process:
        yield process


@contextmanager
def small_talk(server: ServingProcess, kind: str) -> Iterator[tuple[Crowd, set[str]]]:
    """A crowd, and the sessions of others that were answered beside it."""
    content, path = CONTENTS[kind](), "/pipelines/redacted" if kind.endswith("redacted") else ""
    with Crowd(server.root + path, content) as crowd:
        assert until(lambda: crowd.answered, 60)
        sessions = {f"small-{i}" for i in range(SMALL)}
        for session in sorted(sessions):
            got = post(server.root, session, body_of(f"This is {session}."))
            assert (got.status_code, got.headers.get("x-turnkeeper-degraded")) in {
                (200, None),
                (200, "memory"),
            }
            if got.headers.get("x-turnkeeper-degraded"):  # a busy machine may miss a deadline, never a turn
                continue
        yield crowd, sessions


@pytest.mark.parametrize("kind", CONTENTS)
def test_what_is_durable_beside_large_requests_outlives_a_kill(
    server: ServingProcess, tmp_path: Path, kind: str
) -> None:
    with small_talk(server, kind) as (crowd, sessions):
        before = crowd.answered
        assert until(lambda: stored(tmp_path) >= sessions, 30), "while the large ones go on"
        assert until(lambda: crowd.answered > before, 60)
        server.kill()
    server.start()
    for session in sorted(sessions):
        contents = server.client.get(f"/v1/memory/sessions/{session}").json()["contents"]
        assert contents[0]["content"] == f"This is {session}."


@pytest.mark.parametrize("kind", CONTENTS)
def test_amid_large_requests_sigterm_loses_no_turn_that_is_not_counted(
    server: ServingProcess, tmp_path: Path, kind: str
) -> None:
    with ExitStack() as stack:
        crowd, sessions = stack.enter_context(small_talk(server, kind))
        assert server.stop() == 0  # within 20 s, where the machine is busy; the grace is 3 s
    found = stored(tmp_path)
    assert found >= sessions
    missing = {session for session, remembered in crowd.remembered.items() if remembered} - found
    assert len(missing) <= sum(map(int, LOST.findall(server.log)))
