"""Requests whose filters leave no message: no model is asked, and the error says what was dropped."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from proxy.cli import app
from tests.peers.fake_upstream import FakeUpstream
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import stored_entries

CONFIG = """
memory: {sessions: "sqlite:${DB}", deadline: 5s}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL:-practice:}"}}
pipelines:
  default:
    upstreams: [main]
    request: [repair_history, restore_history, drop_messages: {sources: [silence, llm_failure]}]
  empty: {upstreams: [main]}
"""
SILENCE = {"role": "assistant", "content": "Are you still there?", "metadata": {"source": "silence"}}
FAILURE = {"role": "assistant", "content": "One moment.", "metadata": {"source": "llm_failure"}}
ORPHAN = {"role": "tool", "tool_call_id": "call_1", "content": "On time."}
ASKED = {"role": "user", "content": "Is my flight on time?"}
ADVICE = " Send a message that they keep, or change the pipeline."
TWO = (
    "'repair_history' dropped 1 tool message; "
    "'drop_messages' dropped 2 assistant messages of source 'silence', "
    "1 assistant message of source 'llm_failure'"
)
CASES: list[tuple[list[Any], str]] = [
    ([SILENCE], "'drop_messages' dropped 1 assistant message of source 'silence'"),
    ([ORPHAN], "'repair_history' dropped 1 tool message"),
    (
        [ORPHAN, SILENCE, FAILURE, {**SILENCE, "content": "Hello?"}],
        TWO,
    ),
]


@pytest.fixture
def proxy(serve: Serve, tmp_path: Path) -> ProxyServer:
    return serve(CONFIG, DB=str(tmp_path / "nothing.db"))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("messages", "dropped"), CASES)
def test_no_model_is_asked(
    proxy: ProxyServer, upstream: FakeUpstream, messages: Any, dropped: str, stream: bool
) -> None:
    got = proxy.chat(messages, channel="s1", stream=stream)
    assert got.status_code == 400
    assert got.json()["error"] == {
        "message": f"The filters leave no message to send: {dropped}.{ADVICE}",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "no_messages",
    }
    assert not upstream.requests
    assert stored_entries(proxy, "s1") == []


def test_what_memory_restores_is_sent(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    proxy.chat([ASKED], channel="s1")
    assert len(stored_entries(proxy, "s1")) == 2
    assert proxy.chat([SILENCE], channel="s1").status_code == 200
    assert upstream.last.json["messages"][0] == ASKED


def test_an_empty_array_of_the_client_goes_on_as_it_came(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    """No filter dropped anything: the model says what it thinks of that."""
    for path in ("/v1/chat/completions", "/pipelines/empty/v1/chat/completions"):
        body = {"model": "m", "messages": []}
        assert proxy.client.post(path, json=body).status_code == 200
        assert upstream.last.json == body


def test_the_words_of_no_message_are_quoted(proxy: ProxyServer) -> None:
    odd = {"role": "tool" + "x" * 100, "content": "secret", "metadata": {"source": "silence" * 50}}
    got = proxy.chat([{**SILENCE, "content": "secret"}, ORPHAN, {**odd, "role": "tool"}])
    assert got.status_code == 400
    assert "secret" not in got.text
    assert "silence" * 7 not in got.text


@pytest.mark.parametrize(("messages", "dropped"), CASES)
def test_an_explanation_says_so(proxy: ProxyServer, messages: Any, dropped: str) -> None:
    got = proxy.client.post("/v1/explain", json={"model": "m", "messages": messages})
    explained = got.json()
    assert got.status_code == 400
    assert explained["error"]["message"] == f"The filters leave no message to send: {dropped}.{ADVICE}"
    assert explained["sent"] is None
    assert [step["filter"] for step in explained["steps"] if step["changed"]]
    asked = proxy.client.post("/v1/explain", json={"model": "m", "messages": [*messages, ASKED]})
    assert (asked.status_code, "error" in asked.json()) == (200, False)


def test_the_command_line_says_so(tmp_path: Path) -> None:
    config, request = tmp_path / "c.yaml", tmp_path / "r.json"
    config.write_text(CONFIG.replace("${DB}", str(tmp_path / "nothing.db")))
    request.write_text(json.dumps({"model": "m", "messages": [SILENCE]}))
    done = CliRunner().invoke(app, ["explain", str(config), str(request)])
    assert done.exit_code == 1
    assert "1 -> 0 messages" in done.stdout
    sentence = f"The filters leave no message to send: {CASES[0][1]}."
    assert done.stdout.endswith(f"\nnothing is sent: {sentence}{ADVICE}\n")
    done = CliRunner().invoke(app, ["explain", str(config), str(request), "--json"])
    assert (done.exit_code, json.loads(done.stdout)["sent"]) == (1, None)


def test_the_page_shows_why(proxy: ProxyServer) -> None:
    proxy.chat([SILENCE], channel="s1")
    stored_entries(proxy, "s1")
    proxy.app.reporter.flush()
    turn = next(iter(proxy.app.traces.newest("default"))).report.id
    page = proxy.client.get(f"/turns/{turn}", headers={"accept": "text/html"}).text
    assert "The filters leave no message to send" in page
    assert "As the upstream got it" not in page
