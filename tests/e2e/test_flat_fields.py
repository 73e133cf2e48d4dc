"""Fields of a voice platform that stand beside ``role`` instead of in ``metadata``."""

from typing import Any

import pytest

from proxy.observe.observation import TurnReport
from tests.peers.fake_upstream import FakeUpstream
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import settle, stored_entries

CONFIG = """
memory: {sessions: "sqlite:${DB}", deadline: 5s, redact: {kinds: [email]}}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default:
    upstreams: [main]
    request:
      - repair_history
      - restore_history
      - drop_messages: {sources: [silence, llm_failure]}
      - restore_interrupted: {show: both}
      - user_context: {template: "{user} ({source}): "}
  merged: {upstreams: [main], request: [merge_consecutive]}
  redacted: {upstreams: [main], request: [redact: {kinds: [email]}, restore_interrupted: {show: both}]}
"""
ASKED = {"role": "user", "content": "A joke!", "turn_id": 1, "source": "asr", "user": "ann"}
CUT: dict[str, Any] = {
    "role": "assistant",
    "content": "Why did the scarecrow",
    "turn_id": 1,
    "source": "llm",
    "interrupted": True,
    "interrupt_timestamp": 1795174884,
    "original": "Why did the scarecrow win an award?",
}
SILENCE = {"role": "assistant", "content": "Are you still there?", "turn_id": 1, "source": "silence"}
NEXT = {"role": "user", "content": "A story.", "turn_id": 2, "source": "message", "user": "ann"}
WINDOW = [ASKED, CUT, SILENCE, NEXT]
MARKS = ("source", "user", "interrupted", "interrupt_timestamp", "original")


def nested(message: dict[str, Any]) -> dict[str, Any]:
    """The same message as Agora writes it."""
    marks = {name: value for name, value in message.items() if name in MARKS}
    return {**{name: value for name, value in message.items() if name not in MARKS}, "metadata": marks}


@pytest.fixture
def proxy(serve: Serve, tmp_path: Any) -> ProxyServer:
    return serve(CONFIG, DB=str(tmp_path / "flat.db"))


def newest(proxy: ProxyServer) -> TurnReport:
    """The report of the newest turn."""
    settle(proxy)
    proxy.app.reporter.flush()
    return next(iter(proxy.app.traces.newest("default"))).report


def test_they_mean_the_same_beside_the_role(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    prompts, exports, users = [], [], []
    for session, window in (("flat", WINDOW), ("nested", [nested(each) for each in WINDOW])):
        assert proxy.chat(window, channel=session).status_code == 200
        prompts.append(upstream.last.json)
        users.append(newest(proxy).user)
        exports.append(proxy.client.get(f"/v1/memory/sessions/{session}").json()["contents"][:-1])
    assert prompts[0] == prompts[1]
    assert [message["content"] for message in prompts[0]["messages"]] == [
        "ann (asr): A joke!",
        "Why did the scarecrow [interrupted here; the caller did not hear: win an award?]",
        "ann (message): A story.",
    ]
    assert all(message.keys() <= {"role", "content"} for message in prompts[0]["messages"])
    assert exports[0] == exports[1] == [nested(each) for each in (ASKED, CUT, NEXT)]
    assert users == ["ann", "ann"]
    assert newest(proxy).ignored == ()


def test_what_is_replayed_flat_is_what_is_stored(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    proxy.chat([ASKED], channel="s1")
    assert len(stored_entries(proxy, "s1")) == 2
    proxy.chat([ASKED, {"role": "assistant", "content": "Hello there.", "source": "llm"}, NEXT], channel="s1")
    assert [message["content"] for message in upstream.last.json["messages"]] == [
        "ann (asr): A joke!",
        "Hello there.",
        "ann (message): A story.",
    ]
    assert [(entry.source, entry.user) for entry in stored_entries(proxy, "s1")] == [
        ("asr", "ann"),
        ("llm", None),
        ("message", "ann"),
        ("llm", None),
    ]


def test_metadata_wins(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    both = {**SILENCE, "metadata": {"source": "llm"}}
    asked = {**NEXT, "metadata": {"user": "bob", "source": None}}
    proxy.chat([ASKED, both, asked], channel="s1")
    assert [message["content"] for message in upstream.last.json["messages"]] == [
        "ann (asr): A joke!",
        "Are you still there?",
        "bob (message): A story.",
    ]
    assert newest(proxy).user == "bob"


def test_those_of_no_use_are_ignored_by_name(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    odd = {**NEXT, "source": 5, "user": ["ann"], "interrupted": "yes", "original": {}}
    odd["interrupt_timestamp"] = "x"
    proxy.chat([odd], channel="s1")
    assert upstream.last.json["messages"] == [{"role": "user", "content": "A story."}]
    assert set(newest(proxy).ignored) == {f"messages[0].{name}" for name in MARKS} | {"message:metadata.user"}


def test_they_keep_no_two_messages_apart(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    again = {**ASKED, "content": "Please!", "source": "message"}
    proxy.chat([ASKED, again], path="/pipelines/merged/v1/chat/completions")
    assert upstream.last.json["messages"] == [{"role": "user", "content": "A joke!\nPlease!"}]


def test_what_must_not_be_told_is_redacted_there_too(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    mail = {**CUT, "content": "Write to", "original": "Write to ann@example.org now."}
    proxy.chat([ASKED, mail, NEXT], path="/pipelines/redacted/v1/chat/completions", channel="s1")
    assert "ann@example.org" not in upstream.last.body.decode()
    assert "[email] now." in upstream.last.body.decode()
    assert "ann@example.org" not in str(stored_entries(proxy, "s1"))


def test_an_explanation_shows_them(proxy: ProxyServer) -> None:
    body = {"model": "m", "messages": WINDOW}
    shown = proxy.client.post("/v1/explain", json=body).json()
    assert shown["messages"] == WINDOW
