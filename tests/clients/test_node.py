"""OpenAI's SDK for Node against the real server."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.peers.fake_upstream import ROLE, by_default, chunk, delta

PROJECT = Path(__file__).parent / "node"


@pytest.fixture(scope="module")
def packages():
    """What package-lock.json pins, installed without running anyone's scripts."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node and npm are not on PATH")
    subprocess.run(["npm", "ci", "--ignore-scripts"], cwd=PROJECT, check=True, timeout=300)


def speaking(request):
    """A stream takes its time, so that a client can leave in the middle of it."""
    whole = list(by_default(request))
    if request.method != "POST" or not request.json.get("stream"):
        return whole
    head, body, end = whole
    return [head, chunk(ROLE + delta(content="Well, ")), 0.1, body, end]


@pytest.mark.clients
def test_the_node_sdk_gets_what_it_expects(packages, proxy, upstream):
    upstream.script = speaking
    environment = {**os.environ, "TURNKEEPER_URL": proxy.root}
    done = subprocess.run(
        ["node", "cases.mjs"],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
