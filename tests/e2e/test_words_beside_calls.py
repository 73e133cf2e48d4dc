"""An answer that speaks and calls a tool, which Pipecat shows as two messages: the words, then the call."""

from typing import Any

import pytest

from tests.peers.fake_upstream import DONE, ROLE, FakeUpstream, delta, sse, stream_of
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import CONFIG, assistant_message, call, stored_entries, user

CALL = {"id": "call_tide", "type": "function", "function": {"name": "tide", "arguments": "{}"}}
ASKS, STOP, MORE = user("When is high tide?"), user("Never mind."), user("Thanks.")
WORDS = "Let me look, it takes a moment. "
CALLS: dict[str, Any] = {"role": "assistant", "tool_calls": [CALL]}
CANCELLED: dict[str, Any] = {"role": "tool", "tool_call_id": "call_tide", "content": "CANCELLED"}


@pytest.fixture
def proxy(serve: Serve, upstream: FakeUpstream) -> ProxyServer:
    """A proxy before a model that calls a tool and also says some words."""
    server = serve(CONFIG)
    upstream.says(*sse(ROLE + delta(content=WORDS) + delta(tool_calls=[{"index": 0, **CALL}]) + DONE))
    call(server, ASKS, stream=True)
    stored_entries(server)
    upstream.says(*sse(stream_of("Fine.")))
    return server


def prompt(proxy: ProxyServer, upstream: FakeUpstream, *window: dict[str, Any]) -> list[Any]:
    """What the model is shown of a turn: words, and whether a tool is called."""
    call(proxy, *window, stream=True)
    stored_entries(proxy)
    shown = upstream.last.json["messages"]
    return [(message.get("content"), "tool_calls" in message) for message in shown]


def answers(proxy: ProxyServer) -> list[tuple[Any, ...]]:
    entries = [entry for entry in stored_entries(proxy) if entry.role == "assistant"]
    return [(entry.content, bool(entry.tool_calls), entry.interrupted, entry.original) for entry in entries]


@pytest.mark.parametrize("heard", ["Let me look", "Let me"])
def test_words_that_were_cut_are_told_and_held_as_heard(
    proxy: ProxyServer, upstream: FakeUpstream, heard: str
) -> None:
    unheard = WORDS[len(heard) :].lstrip(", ").rstrip()
    window = [ASKS, assistant_message(heard), CALLS, CANCELLED, STOP]
    shown = [
        (ASKS["content"], False),
        (f"{heard} [interrupted here; the caller did not hear: {unheard}]", False),
        (None, True),
        ("CANCELLED", False),
        (STOP["content"], False),
    ]
    assert prompt(proxy, upstream, *window) == shown
    assert answers(proxy) == [(heard, True, True, WORDS), ("Fine.", False, False, None)]
    assert prompt(proxy, upstream, *window, assistant_message("Fine."), MORE)[: len(shown)] == shown
    assert answers(proxy)[0] == (heard, True, True, WORDS)


def test_words_that_were_heard_are_told_and_held_once(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    window = [
        ASKS,
        assistant_message("Let me look, it takes a moment."),
        CALLS,
        {**CANCELLED, "content": "At noon."},
    ]
    shown = prompt(proxy, upstream, *window)
    assert [content for content, _ in shown if content and content.startswith("Let me")] == [
        "Let me look, it takes a moment."
    ]
    assert [calls for _, calls in shown] == [False, False, True, False]
    assert answers(proxy) == [(WORDS, True, False, None), ("Fine.", False, False, None)]
    assert prompt(proxy, upstream, *window, assistant_message("Fine."), MORE)[: len(shown)] == shown
