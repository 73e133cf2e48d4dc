"""A filter of a user's own that fails, and what the caller gets."""

import json
from pathlib import Path

import pytest

from proxy.answer.transcript import transcript
from tests.peers.fake_upstream import DONE, HANG, HEAD, ROLE, FakeUpstream, chunk, delta
from tests.proxy_server import CONFIG, ProxyServer, Serve

pytestmark = pytest.mark.faults
REQUEST = """
from filters.base import RequestFilter

class Moody(RequestFilter):
    def {method}:
        {body}
"""
ANSWER = """
from filters.base import AnswerFilter

class Stage:
    count = 0

    def feed(self, delta):
        self.count += 1
        if self.count == {number}:
            raise ValueError("a secret")
        return delta

    def close(self):
        return {{}}

class Moody(AnswerFilter):
    def open(self, context):
        return Stage()
"""
RAISES = ["apply(self, messages, context)", 'raise KeyError("a secret")']


@pytest.fixture
def moody(serve: Serve, tmp_path: Path) -> Serve:
    def start(source: str, side: str, extra: str = "") -> ProxyServer:
        (tmp_path / "moody.py").write_text(source)
        named = CONFIG.replace("request: []", f"{side}: [moody]{extra}")
        return serve(f"filters: [moody.py]\n{named}")

    return start


@pytest.mark.parametrize(
    ("method", "body", "said"),
    [
        (*RAISES, "failed with KeyError at moody.py:6"),
        ("set(self, fields, context)", "return 1 / 0", "failed with ZeroDivisionError at moody.py:6"),
        ("apply(self, messages, context)", "return None", "returned something else than a list of messages"),
    ],
)
def test_the_turn_is_refused_and_the_filter_named(
    moody: Serve,
    upstream: FakeUpstream,
    caplog: pytest.LogCaptureFixture,
    method: str,
    body: str,
    said: str,
) -> None:
    got = moody(REQUEST.format(method=method, body=body), "request").chat()
    assert got.status_code == 500
    assert got.json()["error"] == {
        "message": f"The filter 'moody' {said}.",
        "type": "server_error",
        "param": None,
        "code": "filter_failed",
    }
    assert f"The filter 'moody' {said}" in caplog.text
    assert "a secret" not in caplog.text
    assert not upstream.requests


def test_the_turn_goes_on_without_it_where_the_settings_say_so(
    moody: Serve, upstream: FakeUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    source = REQUEST.format(method=RAISES[0], body=RAISES[1])
    proxy = moody(source, "request", ", failing: skip")
    got = proxy.chat(stream=True)
    assert got.status_code == 200
    assert got.headers["x-turnkeeper-degraded"] == "moody"
    assert upstream.last.json["messages"] == [{"role": "user", "content": "Hi"}]
    assert "'moody' has failed" in caplog.text
    assert 'turnkeeper_degraded_turns_total{name="moody"} 1.0' in proxy.client.get("/metrics").text


def test_an_answer_filter_that_fails_is_named_too(moody: Serve, caplog: pytest.LogCaptureFixture) -> None:
    proxy = moody(ANSWER.format(number=1), "answer")
    whole, stream = proxy.chat(), proxy.chat(stream=True)
    assert whole.status_code == 500
    assert "The filter 'moody' failed with ValueError" in whole.json()["error"]["message"]
    error = json.loads(stream.content.split(b"data: ")[-1])["error"]
    assert error["code"] == "filter_failed"
    assert DONE not in stream.content
    assert "a secret" not in caplog.text


def test_an_answer_filter_that_fails_later_ends_the_stream_in_an_error(
    moody: Serve, upstream: FakeUpstream
) -> None:
    upstream.says(HEAD, chunk(ROLE), chunk(delta(content="One. ")), 0.2, chunk(delta(content="Two.")), HANG)
    got = moody(ANSWER.format(number=3), "answer").chat(stream=True)
    assert transcript(got.content).text == "One. "
    assert json.loads(got.content.split(b"data: ")[-1])["error"]["code"] == "filter_failed"
    assert upstream.last.closed.wait(10)
