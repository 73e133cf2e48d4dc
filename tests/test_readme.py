"""The commands of the README work for a newcomer."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import AGORA
from tests.proxy_server import ProxyServer, Serve

ROOT = Path(__file__).parents[1]
README, INSTALL, FIRST_CALL = (
    (ROOT / page).read_text() for page in ("README.md", "docs/install.md", "docs/first-call.md")
)
FENCED = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [(match[1], match[2]) for page in (README, FIRST_CALL) for match in FENCED.finditer(page)]


def block(language: str, holding: str) -> str:
    return next(text for name, text in BLOCKS if name == language and holding in text)


@pytest.fixture
def practice(serve: Serve) -> ProxyServer:
    return serve(AGORA, UPSTREAM_BASE_URL="practice:")


def sh(script: str) -> str:
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_its_curl_gets_the_answer_that_it_shows(practice: ProxyServer) -> None:
    got = json.loads(sh(block("sh", "curl").replace("http://127.0.0.1:8080", practice.root)))
    shown = json.loads(block("json", "chat.completion"))
    for answer in (got, shown):
        del answer["id"], answer["created"]
    assert got == shown


def test_its_curl_streams_when_asked_to(practice: ProxyServer) -> None:
    curl = block("sh", "curl").replace("http://127.0.0.1:8080", practice.root)
    got = sh(curl.replace('"model": "practice",', '"model": "practice", "stream": true,'))
    assert got.startswith("data: {")
    assert got.endswith("data: [DONE]\n\n")


def test_its_python_prints_an_answer(practice: ProxyServer) -> None:
    script = block("python", "OpenAI").replace("http://127.0.0.1:8080", practice.root)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert 'user: "Hello!"' in done.stdout


def test_its_agent_is_known_by_its_parameters(practice: ProxyServer) -> None:
    llm = json.loads(block("json", '"vendor"'))["properties"]["llm"]
    assert llm["vendor"] == "custom"
    got = practice.chat(path="/chat/completions", **llm["params"])
    assert got.headers["x-turnkeeper-session"] == "room-1"
    assert "refuse" not in got.text


def test_its_variables_are_those_of_the_shipped_configuration() -> None:
    told = set(
        re.findall(r"`([A-Z_]+)`", INSTALL[INSTALL.index("| variable") : INSTALL.index("Anything else")])
    )
    read = set(re.findall(r"\$\{([A-Z_]+)", AGORA.read_text())) - {
        "NAME"
    }  # of the comment that explains them
    assert told == read
