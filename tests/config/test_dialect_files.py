"""A dialect's file adds comfort, and passes that dialect's own body through."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from docs.make import ROOT
from tests.peers.fake_upstream import FakeUpstream, Received, answer, by_default, stream_of
from tests.peers.strict_upstream import judge
from tests.proxy_server import Serve

FILES = sorted(
    path.stem for path in (ROOT / "config").glob("*.yaml") if path.stem not in {"agora", "everything"}
)
GOLDEN = ROOT / "tests" / "golden" / "dialects"
SESSIONS = {"elevenlabs": "talk-1"}  # where the file reads more than is read without it


@pytest.fixture
def posted(serve: Serve, upstream: FakeUpstream) -> Callable[[str], tuple[Any, dict[str, Any]]]:
    """What comes of a dialect's body on its own file before a strict model: the answer, and what was sent."""

    def post(name: str) -> tuple[Any, dict[str, Any]]:
        golden = json.loads((GOLDEN / f"{name}.json").read_text())
        upstream.script = strict
        proxy = serve(ROOT / "config" / f"{name}.yaml")
        got = proxy.client.post(golden["path"], headers=golden["headers"], json=golden["body"])
        assert got.status_code == 200, got.text
        assert got.headers.get("x-turnkeeper-session") == SESSIONS.get(name, golden["identity"]["session"])
        return got, upstream.last.json

    return post


def strict(request: Received) -> Any:
    refusal = judge("openai", request.json)
    return answer(refusal.body, refusal.status) if refusal else by_default(request)


@pytest.mark.parametrize("name", FILES)
def test_a_dialects_body_passes_through_its_file(posted: Callable[[str], Any], name: str) -> None:
    got, sent = posted(name)
    assert got.content == stream_of("Hello", " there.")
    assert sent["messages"][-1]["role"] == "user"
    for message in sent["messages"]:
        assert message.keys() <= {"role", "content"}


SAID = {
    "vapi": {"role": "assistant", "content": "Good. What can I do for you?"},
    "livekit": {"role": "user", "content": "Tell me a story."},
    "pipecat": {"role": "user", "content": "Hello?\nAre you\nthere?"},
    "tencent": {"role": "user", "content": "hello"},
    "hume": {"role": "user", "content": "I lost my card."},
    "elevenlabs": {"role": "assistant", "content": "You are on the small plan."},
}


@pytest.mark.parametrize("name", FILES)
def test_what_a_file_is_for_is_done(posted: Callable[[str], Any], name: str) -> None:
    assert SAID[name] in posted(name)[1]["messages"]


def test_a_file_stays_short() -> None:
    for name in FILES:
        assert len((ROOT / "config" / f"{name}.yaml").read_text().splitlines()) <= 60
