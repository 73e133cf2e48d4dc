"""A proxy that is killed at any moment loses no turn and no summary, and says nothing twice."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests import preloaded
from tests.long_call import LongCall, config, is_notes, model, noted
from tests.peers.fake_upstream import HANG, HEAD, ROLE, FakeUpstream, by_default, chunk, delta
from tests.peers.redis_server import RedisServer, free_port
from tests.serving_process import at_rest, kill_all
from tests.tried import Tried
from tests.waiting import awaited, until

pytestmark = pytest.mark.faults
PATH = "/v1/memory/sessions/long/summaries"


class Killable:
    """The proxy as a process of its own, on one port for good."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.port = free_port()
        self.config = folder / "killed.yaml"
        self.config.write_text(f"listen: {{port: {self.port}}}\n{config(10, 4)}")
        self.environ = {**os.environ, **environ}
        self.client = httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=10, verify=False)
        self.start("serve")

    def start(self, *command: str) -> None:
        log = self.config.with_name("killed.log")
        with log.open("ab") as out:
            self.process = preloaded.start([*command, str(self.config)], self.environ, out)
        until(lambda: self.is_up() or self.process.poll() is not None)
        assert self.is_up(), log.read_text(errors="replace")

    def is_up(self) -> bool:
        with suppress(httpx2.TransportError):
            return self.client.get("/readyz").status_code == 200
        return False

    def kill(self) -> None:
        kill_all(self.process)

    def chat(self, messages: Any, **call: Any) -> Any:
        headers = call.pop("headers")
        body = {"model": "fake", "messages": messages, **call}
        got = self.client.post("/v1/chat/completions", json=body, headers=headers)
        awaited(lambda: at_rest(self.client))  # what has left the queue is durable
        return got

    def summaries(self) -> Any:
        return self.client.get(PATH).json()["data"]


@pytest.fixture(params=["sqlite", "redis"])
def killable(request: pytest.FixtureRequest, tmp_path: Path, upstream: FakeUpstream) -> Iterator[Killable]:
    with ExitStack() as stack:
        url = f"sqlite:{tmp_path / 'sessions.db'}"
        if request.param == "redis":
            url = stack.enter_context(closing(RedisServer(tmp_path))).url
        proxy = Killable(tmp_path, {"MEMORY_URL": url, "UPSTREAM_BASE_URL": upstream.url})
        yield proxy
        proxy.kill()
        proxy.client.close()


def test_a_kill_while_a_summary_is_made_loses_none_and_doubles_none(
    killable: Killable, upstream: FakeUpstream, tried: Tried
) -> None:
    slow = {"by": 30.0}
    upstream.script = model(lambda request: [slow["by"], *noted(request)])
    call = LongCall(killable, upstream)
    for _ in range(7):
        call.check(call.turn())
    awaited(lambda: any(is_notes(r) for r in list(upstream.requests)))
    killable.kill()  # in the middle of it
    slow["by"] = 0.0
    killable.start("serve")
    for _ in range(2):
        call.check(call.turn())
    awaited(killable.summaries, seconds=60)  # nobody nudges: it is found from the store after a lease
    for n in range(12):
        if n % 4 == 2:
            killable.kill()
            killable.start("serve")
        call.check(call.turn())
        # With twice as many messages as there may be, the server would not wait for notes.
        awaited(lambda: killable.summaries()[-1]["turn"] > call.number - 8)
    reached = [one["turn"] for one in killable.summaries()]
    assert reached == sorted(set(reached))
    tried("killed while it summarises, and later", "every turn once, every summary once")


def test_a_kill_in_mid_stream_loses_nothing_that_was_said_before(
    killable: Killable, upstream: FakeUpstream, tried: Tried
) -> None:
    asked = [{"role": "user", "content": f"Question {n}.", "turn_id": n} for n in range(5)]
    headers = {"X-Session-Id": "cut"}
    for message in asked[:3]:
        assert killable.chat([message], headers=headers).status_code == 200
    upstream.says(HEAD, chunk(ROLE + delta(content="half")), HANG)
    body = {"model": "fake", "messages": [asked[3]], "stream": True}
    with (
        suppress(httpx2.TransportError),
        killable.client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as got,
    ):
        for _ in got.iter_raw():
            killable.kill()
    upstream.script = by_default
    killable.start("serve")
    assert killable.chat([asked[4]], headers=headers).status_code == 200
    shown = [message["content"] for message in upstream.last.json["messages"]]
    wanted = [text for n in range(3) for text in (f"Question {n}.", "Hello there.")]
    assert shown[:6] == wanted
    assert shown[-1] == "Question 4."
    tried("killed in mid-stream", "the stream breaks; all turns before it are held")


def test_a_worker_of_its_own_summarises_where_the_server_does_not(
    killable: Killable, upstream: FakeUpstream
) -> None:
    upstream.script = model()
    killable.kill()
    killable.config.write_text(killable.config.read_text().replace("memory:\n", "memory:\n  work: false\n"))
    killable.start("serve")
    call = LongCall(killable, upstream)
    for _ in range(8):
        call.check(call.turn())
    time.sleep(0.3)
    assert killable.summaries() == []
    with preloaded.greeting("worker", str(killable.config), env=killable.environ) as (worker, _):
        awaited(killable.summaries)
        worker.terminate()
        assert worker.wait(20) == 0
    call.check(call.turn())
