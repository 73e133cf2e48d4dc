"""Gemini signs its tool calls, and refuses a call that comes back unsigned, or signed elsewhere."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.peers.fake_upstream import (
    DONE,
    ROLE,
    FakeUpstream,
    Received,
    Step,
    answer,
    completion,
    delta,
    sse,
    stream_of,
)
from tests.peers.strict_upstream import judge
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import CONFIG, call, stored_entries, user

SIGNED = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
ASKED = user("Is it raining?")
GEMINI = CONFIG.replace('"${UPSTREAM_BASE_URL}"', '"${UPSTREAM_BASE_URL}", accepts: "${KIND}"')


@pytest.fixture(params=[True, False], ids=["stream", "whole"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def calling(*, stream: bool, **signature: Any) -> list[Step]:
    if stream:
        deltas = delta(tool_calls=[{"index": 0, **CALL, **signature}])
        return sse(ROLE + deltas + delta(finish="tool_calls") + DONE)
    whole = completion("")
    whole["choices"][0] |= {
        "message": {"role": "assistant", "content": None, "tool_calls": [{**CALL, **signature}]},
        "finish_reason": "tool_calls",
    }
    return answer(whole)


def strict(vendor: str, *, stream: bool) -> Any:
    """A model that calls a tool first, and takes what this vendor takes."""

    def script(request: Received) -> Iterable[Step]:
        if refusal := judge(vendor, request.json):
            return answer(refusal.body, refusal.status)
        if not any(message["role"] == "tool" for message in request.json["messages"]):
            return calling(stream=stream, **SIGNED)
        return sse(stream_of("It rains.")) if stream else answer(completion("It rains."))

    return script


def served(serve: Serve, tmp_path: Path, kind: str) -> ProxyServer:
    return serve(GEMINI, KIND=kind, MEMORY_URL=f"sqlite:{tmp_path / 'm.db'}")


def sent_calls(upstream: FakeUpstream) -> list[dict[str, Any]]:
    return [each for message in upstream.last.json["messages"] for each in message.get("tool_calls") or ()]


CARRIED = [
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "assistant", "content": None, "tool_calls": [{**CALL, **SIGNED}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL], **SIGNED},
]


@pytest.mark.parametrize("carried", CARRIED, ids=["dropped", "carried", "misplaced"])
def test_a_call_goes_back_signed_whatever_the_client_carries(
    serve: Serve, upstream: FakeUpstream, tmp_path: Path, *, stream: bool, carried: dict[str, Any]
) -> None:
    proxy = served(serve, tmp_path, "gemini")
    upstream.script = strict("gemini", stream=stream)
    assert call(proxy, ASKED, stream=stream).status_code == 200
    assert [entry.tool_calls for entry in stored_entries(proxy)] == [None, [{**CALL, **SIGNED}]]

    got = call(proxy, ASKED, carried, RESULT, stream=stream)
    assert got.status_code == 200, got.text
    assert sent_calls(upstream) == [{**CALL, **SIGNED}]
    assert [entry.tool_calls for entry in stored_entries(proxy)][1] == [{**CALL, **SIGNED}]

    got = call(proxy, user("And tomorrow?"), stream=stream)  # the call has slid out of the window
    assert got.status_code == 200, got.text
    assert sent_calls(upstream) == [{**CALL, **SIGNED}]


@pytest.mark.parametrize("vendor", ["openai", "azure", "groq", "mistral", "anthropic", "vllm"])
def test_no_other_model_is_sent_a_signature(
    serve: Serve, upstream: FakeUpstream, tmp_path: Path, vendor: str
) -> None:
    proxy = served(serve, tmp_path, vendor)
    upstream.script = strict(vendor, stream=True)
    for window in ([ASKED], [ASKED, CARRIED[1] | SIGNED, RESULT], [user("And tomorrow?")]):
        got = call(proxy, *window, stream=True)
        assert got.status_code == 200, got.text
        assert "c2ln" not in json.dumps(upstream.last.json)
        stored_entries(proxy)
    assert sent_calls(upstream)
