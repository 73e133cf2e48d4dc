"""What the log contains, and what it never contains."""

import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from proxy.observe.log import LogEntry, logging_to
from tests import preloaded
from tests.peers.fake_upstream import CLOSE, END, HEAD, ROLE, FakeUpstream, answer, chunk, delta, event
from tests.peers.redis_server import free_port
from tests.proxy_server import CONFIG, Serve
from tests.serving_process import LISTEN, ServingProcess
from tests.waiting import awaited

SECRET, KEY, UPSTREAM_KEY = "my card is 4111", "s3cret-key", "sk-upstream"
SAID = {"model": "fake", "messages": [{"role": "user", "content": SECRET}], "session_id": "room 1"}


def logged(
    folder: Path, upstream: str, settings: str, calls: int = 1, key: str = KEY, body: Any = SAID
) -> tuple[list[str], Any]:
    """What a server writes to stderr while it answers calls, and the last answer."""
    config = f'keys: "acme:{KEY}"\nlisten: {{port: 0}}\nlog: {settings}\n' + CONFIG
    (folder / "config.yaml").write_text(config)
    environ = {**os.environ, "UPSTREAM_BASE_URL": upstream, "UPSTREAM_API_KEY": UPSTREAM_KEY}
    command = ["serve", str(folder / "config.yaml")]
    errors = folder / "errors.log"
    with errors.open("wb") as log, preloaded.greeting(*command, env=environ, err=log) as (process, greeting):
        root = greeting.split()[-1]
        headers = {"Authorization": f"Bearer {key}", "X-Request-Id": "req-1"}
        sent = {"content": body} if isinstance(body, bytes) else {"json": body}
        with httpx2.Client(timeout=10, verify=False) as client:
            for _ in range(calls):
                got = client.post(f"{root}/v1/chat/completions", headers=headers, **sent)
        process.terminate()
        process.wait(20)
    return errors.read_text().splitlines(), got


def test_a_turn_is_one_line_of_json_without_a_word_of_it(tmp_path: Path, upstream: FakeUpstream) -> None:
    lines, _ = logged(tmp_path, upstream.url, "{format: json}", calls=2)
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
    (line,), _ = logged(tmp_path, upstream.url, "{format: text}")
    day, clock, rest = line.split(" ", 2)
    told = datetime.strptime(f"{day} {clock}", "%Y-%m-%d %H:%M:%S.%f").astimezone()
    assert abs(datetime.now(UTC) - told) < timedelta(minutes=1)
    assert rest.startswith("INFO turn done turn=turn_")
    assert 'session="room 1"' in line


def test_content_is_logged_where_it_is_asked_for(tmp_path: Path, upstream: FakeUpstream) -> None:
    (line,), _ = logged(tmp_path, upstream.url, "{format: json, content: true}")
    assert json.loads(line) | {"asked": SECRET, "answered": "Hello there."} == json.loads(line)


def test_a_level_leaves_turns_out(tmp_path: Path, upstream: FakeUpstream) -> None:
    assert logged(tmp_path, upstream.url, "{level: warning}")[0] == []


def nowhere() -> str:
    """A base URL without a server."""
    return f"http://127.0.0.1:{free_port()}/v1"


def test_a_failed_turn_is_told_at_any_level_and_why(tmp_path: Path) -> None:
    lines, got = logged(tmp_path, nowhere(), "{level: warning, format: json}")
    (told,) = map(json.loads, lines)
    assert got.status_code == 502
    assert (told["level"], told["message"], told["code"]) == (
        "warning",
        "turn failed",
        "upstream_unreachable",
    )
    assert told["reason"].startswith("cannot connect to http://127.0.0.1:")


def test_an_upstream_that_is_away_is_told_of_once(tmp_path: Path) -> None:
    lines, _ = logged(tmp_path, nowhere(), "{level: warning}", calls=12)
    turns = [line for line in lines if " turn failed " in line]
    (told,) = [line for line in lines if line not in turns]
    assert len(turns) == 12 and "WARNING The upstream 'main' cannot be reached" in told


@pytest.fixture(scope="module")
def asked() -> Iterator[FakeUpstream]:
    with FakeUpstream() as fake:
        yield fake


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, asked: FakeUpstream) -> Iterator[ServingProcess]:
    """A server that logs what is wrong, and nothing else: a line for each call."""
    config = f'keys: "acme:{KEY}"\nlog: {{level: warning, format: json}}\n{LISTEN}{CONFIG}'
    environ = {"UPSTREAM_BASE_URL": asked.url, "UPSTREAM_API_KEY": UPSTREAM_KEY}
    with ServingProcess(tmp_path_factory.mktemp("strict"), config, **environ) as serving:
        yield serving


def lines_of(serving: ServingProcess) -> list[str]:
    return [line for line in serving.log.splitlines() if line.startswith("{")]


def warned(serving: ServingProcess, body: Any) -> tuple[str, Any]:
    """The one line that a call leaves, and its answer."""
    before = len(lines_of(serving))
    sent = {"content": body} if isinstance(body, bytes) else {"json": body}
    got = serving.client.post("/v1/chat/completions", headers={"Authorization": f"Bearer {KEY}"}, **sent)
    (line,) = awaited(lambda: lines_of(serving)[before:])
    return line, got


QUOTED = {
    "error": {"message": f"wrong key {UPSTREAM_KEY} for {SECRET}", "type": SECRET, "code": UPSTREAM_KEY}
}
KNOWN = {"error": {"message": f"wrong key {UPSTREAM_KEY}", "type": "x", "code": "invalid_api_key"}}
FRAME = event(error=QUOTED["error"])


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (answer(QUOTED, status=401), "The upstream answered 401; check upstreams.main.api_key"),
        (
            answer(KNOWN, status=401),
            "The upstream answered 401: invalid_api_key; check upstreams.main.api_key",
        ),
        (
            answer([KNOWN], status=400),
            "The upstream answered 400: invalid_api_key; check upstreams.main.accepts",
        ),
        (answer(SECRET + UPSTREAM_KEY, status=500), "The upstream answered 500."),
        (answer(QUOTED), "The upstream answered 502."),
        (answer(SECRET + UPSTREAM_KEY), "which is no completion"),
        ((HEAD, chunk(FRAME), END), "The upstream answered 502."),
        ((HEAD, chunk(ROLE + delta(content="Well") + FRAME), END), "The upstream answered 502."),
        ((HEAD, chunk(ROLE + delta(content="Well")), CLOSE), "broke off in the middle of its answer"),
    ],
)
def test_the_log_says_why_and_quotes_neither_keys_nor_words(
    strict: ServingProcess, asked: FakeUpstream, steps: Any, reason: str
) -> None:
    asked.says(*steps)
    # A model of its own: one that failed is left alone for a while.
    line, _ = warned(strict, SAID | {"stream": True, "model": f"m-{uuid4()}"})
    assert reason in json.loads(line)["reason"]
    for secret in (SECRET, KEY, UPSTREAM_KEY):
        assert secret not in line


@pytest.mark.parametrize(
    "body",
    [
        f'{{"messages": {SECRET}'.encode(),
        SECRET.encode(),
        {"model": "m", "messages": SECRET},
        {"model": "m", "messages": [SECRET]},
        {"model": "m", "messages": [{"role": [SECRET], "content": SECRET}]},
        {"model": "m", "messages": [{"role": "user", "content": {SECRET: SECRET}}]},
        {"model": [SECRET], "messages": []},
        {"model": "m", "stream": SECRET, "messages": []},
    ],
)
def test_what_is_wrong_with_a_request_is_told_without_its_words(strict: ServingProcess, body: Any) -> None:
    line, got = warned(strict, body)
    told = json.loads(line)
    assert (got.status_code, told["status"]) == (400, 400)
    assert told["reason"] and SECRET not in line


def test_keys_that_are_refused_leave_a_line(tmp_path: Path, upstream: FakeUpstream) -> None:
    lines, got = logged(tmp_path, upstream.url, "{level: warning, format: json}", calls=3, key="wr0ng")
    assert got.status_code == 401
    told = [json.loads(line) for line in lines]
    assert {each["code"] for each in told} == {"invalid_api_key"}
    assert [each["count"] for each in told] == [1, 2], "the first at once, the others together"
    assert "wr0ng" not in "".join(lines)


def test_a_notice_without_its_signature_leaves_a_line(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    proxy = serve('memory: {sessions: "memory:"}\nwebhooks: {agora: {secret: one}}\n' + CONFIG)
    assert proxy.client.post("/webhooks/agora", json={"noticeId": "1", "eventType": 101}).status_code == 401
    assert "requests refused code=invalid_signature count=1" in [str(each.msg) for each in caplog.records]


def test_a_port_that_is_taken_is_told_instead_of_a_greeting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "config.yaml").write_text(f"listen: {{port: {port}}}\n" + CONFIG)
        done = preloaded.run("serve", str(tmp_path / "config.yaml"), folder=tmp_path, env=os.environ)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"Port {port} on 127.0.0.1 is taken" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("value", "shown"), [("a b", '"a b"'), ("a\nb", '"a\\nb"'), ("", '""'), (1.5, "1.5"), ("é", "é")]
)
def test_a_value_stays_on_its_line(value: object, shown: str) -> None:
    assert str(LogEntry("said", {"x": value})) == f"said x={shown}"


def test_a_reader_who_stalls_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.observe.log._LONGEST_QUEUE", 10)
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
