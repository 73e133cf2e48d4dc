"""What is logged, and what never is."""

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from proxy.telemetry.log import Entry, logging_to
from tests.fake_upstream import FakeUpstream, answer
from tests.proxy_server import CONFIG

SECRET, KEY, UPSTREAM_KEY = "my card is 4111", "s3cret-key", "sk-upstream"


def logged(folder: Path, upstream: FakeUpstream, settings: str, calls: int = 1) -> tuple[list[str], Any]:
    """What a server writes to stderr while it answers calls, and the last answer."""
    config = f'keys: "acme:{KEY}"\nlisten: {{port: 0}}\nlog: {settings}\n' + CONFIG
    (folder / "config.yaml").write_text(config)
    environ = {**os.environ, "UPSTREAM_BASE_URL": upstream.url, "UPSTREAM_API_KEY": UPSTREAM_KEY}
    command = [sys.executable, "-m", "proxy", "serve", str(folder / "config.yaml")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environ, text=True, encoding="utf-8", **pipes) as process:
        root = process.stdout.readline().split()[-1]
        body = {"model": "fake", "messages": [{"role": "user", "content": SECRET}], "session_id": "room 1"}
        headers = {"Authorization": f"Bearer {KEY}", "X-Request-Id": "req-1"}
        with httpx2.Client(timeout=10) as client:
            for _ in range(calls):
                got = client.post(f"{root}/v1/chat/completions", json=body, headers=headers)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    return errors.splitlines(), got


def test_a_turn_is_one_line_of_json_without_a_word_of_it(tmp_path: Path, upstream: FakeUpstream) -> None:
    lines, _ = logged(tmp_path, upstream, "{format: json}", calls=2)
    turns = [json.loads(line) for line in lines]
    assert len(turns) == 2
    told = turns[0]
    assert (
        told
        | {
            "level": "info",
            "message": "turn done",
            "request": "req-1",
            "session": "room 1",
            "tenant": "acme",
            "status": 200,
            "input_tokens": 5,
        }
        == told
    )
    assert told["turn"] != turns[1]["turn"]
    assert told["recall_ms"] >= 0 and told["duration_ms"] > 0
    for secret in (SECRET, KEY, UPSTREAM_KEY, "Hello there"):
        assert secret not in "\n".join(lines)


def test_people_read_one_line_too(tmp_path: Path, upstream: FakeUpstream) -> None:
    (line,), _ = logged(tmp_path, upstream, "{format: text}")
    assert line.startswith("INFO turn done turn=turn_")
    assert 'session="room 1"' in line


def test_content_is_logged_where_it_is_asked_for(tmp_path: Path, upstream: FakeUpstream) -> None:
    (line,), _ = logged(tmp_path, upstream, "{format: json, content: true}")
    assert json.loads(line) | {"asked": SECRET, "answered": "Hello there."} == json.loads(line)


def test_a_level_leaves_turns_out(tmp_path: Path, upstream: FakeUpstream) -> None:
    assert logged(tmp_path, upstream, "{level: warning}")[0] == []


def test_no_secret_is_logged_where_things_fail(tmp_path: Path, upstream: FakeUpstream) -> None:
    upstream.says(*answer({"error": {"message": f"wrong key {UPSTREAM_KEY}"}}, status=401))
    lines, got = logged(tmp_path, upstream, "{format: json}")
    assert got.status_code == 401
    assert json.loads(lines[0])["outcome"] == "failed"
    assert UPSTREAM_KEY not in "\n".join(lines)


def test_a_port_that_is_taken_is_told_instead_of_a_greeting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "config.yaml").write_text(f"listen: {{port: {port}}}\n" + CONFIG)
        command = [sys.executable, "-m", "proxy", "serve", str(tmp_path / "config.yaml")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"Port {port} on 127.0.0.1 is taken" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("value", "shown"), [("a b", '"a b"'), ("a\nb", '"a\\nb"'), ("", '""'), (1.5, "1.5"), ("é", "é")]
)
def test_a_value_stays_on_its_line(value: object, shown: str) -> None:
    assert str(Entry("said", {"x": value})) == f"said x={shown}"


def test_a_reader_who_stalls_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.telemetry.log._MOST_WAITING", 10)
    log = logging.getLogger("turnkeeper.stalled")
    reads, writes = os.pipe()
    with os.fdopen(reads, "rb", 0), os.fdopen(writes, "w") as stalled, logging_to(stalled):
        os.set_blocking(writes, False)
        with contextlib.suppress(BlockingIOError):
            while os.write(writes, b" " * 65536):
                pass
        os.set_blocking(writes, True)
        began = time.perf_counter()
        for _ in range(1000):
            log.info("line")
        assert time.perf_counter() - began < 2
        os.read(reads, 65536)
