"""The voice frameworks' own clients against the real server, each in an environment of its own."""

import os
import shutil
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import AGORA
from tests.peers.fake_upstream import FakeUpstream, Received, by_default, calling, sse, stream_of
from tests.proxy_server import Serve
from tests.remembering import held

CLIENTS = Path(__file__).parent
SAID = {
    "Tell me a joke.": ("Why did the scarecrow ", "win an award?"),
    "A story, please.": ("Once upon ", "a time."),
}


def model(request: Received) -> Any:
    """A model that calls the tool once, and tells what it said."""
    if request.method == "GET":
        return by_default(request)
    newest = request.json["messages"][-1]
    if newest["role"] == "tool":
        return sse(stream_of("It is ", "mild."))
    if newest["content"] in SAID:
        return sse(stream_of(*SAID[newest["content"]]))
    return calling("weather", stream=True)


def python_talk(name: str, folder: Path) -> list[Path | str]:
    """What runs a framework's talk: the Python of an environment that holds what its lock pins."""
    python = folder / "bin" / "python"
    venv.create(folder, with_pip=True)
    lock = CLIENTS / name / "requirements.lock"
    command = [python, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", lock]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        pytest.skip(f"{name} cannot be installed here: {done.stderr.strip()[-300:]}")
    return [python, CLIENTS / name / "talk.py"]


def node_talk(name: str, folder: Path) -> list[Path | str]:
    """The same for Node, with what its lock pins and without running anyone's scripts."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node and npm are not on PATH")
    shutil.copytree(CLIENTS / name, folder)
    subprocess.run(["npm", "ci", "--ignore-scripts"], cwd=folder, check=True, timeout=300)
    return ["node", folder / "talk.mjs"]


@pytest.mark.clients
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "ready"), [("livekit", python_talk), ("pipecat", python_talk), ("aisdk", node_talk)]
)
def test_a_framework_takes_three_turns(
    name: str,
    ready: Callable[[str, Path], list[Path | str]],
    serve: Serve,
    upstream: FakeUpstream,
    tmp_path: Path,
) -> None:
    """The unmarked interruption is found, the tool's group stays whole, and memory holds what was heard."""
    upstream.script = model
    server = serve(AGORA)
    done = subprocess.run(
        ready(name, tmp_path / name),
        env={**os.environ, "TURNKEEPER_URL": server.root},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [said for said in bodies(upstream)[-1] if said[0] != "system"] == CONVERSATION
    assert [entry.text for entry in held(server, "room-1") if entry.role == "user"] == ASKED
    assert "Why did the scarecrow" in [entry.text for entry in held(server, "room-1")]


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
