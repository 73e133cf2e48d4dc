"""The voice frameworks' own clients against the real server, each in an environment of its own."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import AGORA
from tests.peers.fake_upstream import FakeUpstream, Received, by_default, calling, sse, stream_of
from tests.proxy_server import Serve
from tests.remembering import stored_entries

CLIENTS = Path(__file__).parent
SAID = {
    "Tell me a joke.": ("Why did the scarecrow ", "win an award?"),
    "A story, please.": ("Once upon ", "a time."),
}


def model(request: Received) -> Any:
    """A model that calls the tool once, and repeats its result."""
    if request.method == "GET":
        return by_default(request)
    newest = request.json["messages"][-1]
    if newest["role"] == "tool":
        return sse(stream_of("It is ", "mild."))
    if newest["content"] in SAID:
        return sse(stream_of(*SAID[newest["content"]]))
    return calling("weather", stream=True)


def node_talk(folder: Path) -> list[Path | str]:
    """What runs the AI SDK's talk, with what its lock pins and without running anyone's scripts."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node and npm are not on PATH")
    folder = shutil.copytree(CLIENTS / "aisdk", folder / "aisdk")
    subprocess.run(["npm", "ci", "--ignore-scripts"], cwd=folder, check=True, timeout=300)
    return ["node", folder / "talk.mjs"]


@pytest.mark.clients
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["livekit", "pipecat", "aisdk"])
def test_a_framework_takes_three_turns(
    name: str,
    python_of: Callable[[str], Path],
    serve: Serve,
    upstream: FakeUpstream,
    tmp_path: Path,
) -> None:
    """The unmarked interruption is found, the tool's group stays whole, and memory holds what was heard."""
    upstream.script = model
    server = serve(AGORA)
    command = node_talk(tmp_path) if name == "aisdk" else [python_of(name), CLIENTS / name / "talk.py"]
    done = subprocess.run(
        command,
        env={**os.environ, "TURNKEEPER_URL": server.root},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [said for said in bodies(upstream)[-1] if said[0] != "system"] == CONVERSATION
    assert [entry.text for entry in stored_entries(server, "room-1") if entry.role == "user"] == ASKED
    assert "Why did the scarecrow" in [entry.text for entry in stored_entries(server, "room-1")]


def bodies(upstream: FakeUpstream) -> list[list[tuple[str, Any]]]:
    """What the model was shown, request by request."""
    posted = [request.json for request in upstream.requests if request.method == "POST"]
    return [[(m["role"], m.get("content") or names(m)) for m in body["messages"]] for body in posted]


def names(message: dict[str, Any]) -> list[str]:
    return [call["function"]["name"] for call in message.get("tool_calls", ())]


ASKED = ["Tell me a joke.", "A story, please.", "Is it raining?"]
UNHEARD = "Why did the scarecrow [interrupted here; the caller did not hear: win an award?]"
CONVERSATION = [
    ("user", "Tell me a joke."),
    ("assistant", UNHEARD),
    ("user", "A story, please."),
    ("assistant", "Once upon a time."),
    ("user", "Is it raining?"),
    ("assistant", ["weather"]),
    ("tool", "Mild."),
]
