"""OpenAI's SDK for Node against the real server."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent / "node"


@pytest.fixture(scope="module")
def packages():
    """What package-lock.json pins, installed without running anyone's scripts."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node and npm are not on PATH")
    subprocess.run(["npm", "ci", "--ignore-scripts"], cwd=PROJECT, check=True, timeout=300)


@pytest.mark.clients
def test_the_node_sdk_gets_what_it_expects(packages, proxy):
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
