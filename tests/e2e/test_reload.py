"""A new configuration is taken over whole, or not at all, and no call notices."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.fake_upstream import DONE, END, HEAD, ROLE, FakeUpstream, chunk, delta

CONFIG = """
listen: {{port: {port}}}
upstreams: {{main: {{base_url: "{url}"}}}}
pipelines:
  default: {{upstreams: [main], model: {model}}}
"""


class Serving:
    """``turnkeeper serve`` as a process of its own."""

    def __init__(self, path: Path, upstream: FakeUpstream, *options: str) -> None:
        self.path, self.upstream = path, upstream
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.write(model="one")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "proxy", "serve", str(path), *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.client = httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=10)
        assert self.until(self.is_up)

    def write(self, text: str = "", model: str = "") -> None:
        written = text or CONFIG.format(port=self.port, url=self.upstream.url, model=model)
        self.path.write_text(written)

    def is_up(self) -> bool:
        try:
            return self.client.get("/readyz").status_code == 200
        except httpx2.TransportError:
            return False

    def model(self) -> str:
        """Which model a call goes to."""
        body = {"messages": [{"role": "user", "content": "Hi"}]}
        assert self.client.post("/v1/chat/completions", json=body).status_code == 200
        return self.upstream.last.json["model"]

    def goes_to(self, upstream: FakeUpstream) -> bool:
        """Whether a call reaches this upstream."""
        body = {"messages": [{"role": "user", "content": "Hi"}]}
        httpx2.post(f"http://127.0.0.1:{self.port}/v1/chat/completions", json=body, timeout=10)
        return bool(upstream.requests)

    def until(self, condition: Callable[[], bool], seconds: float = 10) -> bool:
        end = time.monotonic() + seconds
        while not condition() and time.monotonic() < end:
            time.sleep(0.02)
        return condition()

    def hang_up(self) -> None:
        os.kill(self.process.pid, signal.SIGHUP)

    def stop(self) -> str:
        self.client.close()
        self.process.terminate()
        return self.process.communicate(timeout=10)[1]


Start = Callable[..., Serving]


@pytest.fixture
def start(tmp_path: Path, upstream: FakeUpstream) -> Iterator[Start]:
    started: list[Serving] = []

    def serving(*options: str) -> Serving:
        started.append(Serving(tmp_path / "config.yaml", upstream, *options))
        return started[-1]

    yield serving
    for each in started:
        if each.process.poll() is None:
            each.stop()


def test_a_hang_up_signal_takes_a_new_configuration_over(start: Start) -> None:
    serving = start()
    assert serving.model() == "one"
    serving.write(model="two")
    assert serving.model() == "one"
    serving.hang_up()
    assert serving.until(lambda: serving.model() == "two")
    assert serving.process.poll() is None


def test_a_watched_file_is_taken_over_when_it_changes(start: Start) -> None:
    serving = start("--reload")
    assert serving.model() == "one"
    time.sleep(0.3)
    serving.write(model="two")
    assert serving.until(lambda: serving.model() == "two")
    replacement = serving.path.with_suffix(".new")
    replacement.write_text(serving.path.read_text().replace("two", "three"))
    replacement.rename(serving.path)
    assert serving.until(lambda: serving.model() == "three")


FILTER = """
from filters.base import RequestFilter

class Motto(RequestFilter):
    def apply(self, messages, context):
        return [message.saying("one") for message in messages]
"""


def test_a_watched_filter_is_taken_over_when_it_changes(start: Start, upstream: FakeUpstream) -> None:
    def asked() -> str:
        serving.model()
        return upstream.last.json["messages"][0]["content"]

    serving = start("--reload")
    motto = serving.path.with_name("motto.py")
    motto.write_text(FILTER)
    time.sleep(0.3)
    text = CONFIG.format(port=serving.port, url=upstream.url, model="two")
    serving.write(f"filters: [motto.py]\n{text.rstrip().rstrip('}')}, request: [motto]}}\n")
    assert serving.until(lambda: asked() == "one")
    motto.write_text(FILTER.replace("one", "two"))
    assert serving.until(lambda: asked() == "two")


@pytest.mark.parametrize("text", ["pipelines: [", "", "upstreams: {main: {base_url: 'practice:', modle: x}}"])
def test_a_bad_edit_changes_nothing_and_is_reported(start: Start, text: str) -> None:
    serving = start()
    serving.write(text or " ")
    serving.hang_up()
    time.sleep(0.5)
    assert serving.model() == "one"
    said = serving.stop()
    assert f"{serving.path}:1" in said
    assert "Traceback" not in said


def test_new_pipelines_come_and_old_ones_go(start: Start) -> None:
    serving = start()
    text = serving.path.read_text()
    serving.write(text + "  extra: {upstreams: [main], model: extra-1}\n")
    serving.hang_up()
    path = "/pipelines/extra/v1/chat/completions"
    call = {"messages": [{"role": "user", "content": "Hi"}]}
    assert serving.until(lambda: serving.client.post(path, json=call).status_code == 200)
    serving.write(text)
    serving.hang_up()
    assert serving.until(lambda: serving.client.post(path, json=call).status_code == 404)


def test_a_turn_in_flight_ends_on_the_old_chain(start: Start, upstream: FakeUpstream, tmp_path: Path) -> None:
    serving = start()
    words = [step for word in ["one", "two", "three", "four"] for step in (chunk(delta(content=word)), 0.2)]
    upstream.says(HEAD, chunk(ROLE), *words, chunk(DONE), END)
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
    with serving.client.stream("POST", "/v1/chat/completions", json=body) as got:
        pieces = got.iter_raw()
        first = next(pieces)
        with FakeUpstream() as other:
            serving.write(CONFIG.format(port=serving.port, url=other.url, model="two"))
            serving.hang_up()
            assert serving.until(lambda: serving.goes_to(other))
            rest = b"".join(pieces)
    assert (first + rest).endswith(DONE)
    assert json.loads(other.last.body)["model"] == "two"


def test_a_new_address_wants_a_restart(start: Start) -> None:
    serving = start()
    serving.write(serving.path.read_text().replace(str(serving.port), "1") + "\n")
    serving.hang_up()
    time.sleep(0.5)
    assert serving.model() == "one"
    assert "restart" in serving.stop()
