"""Facts in the real Mem0, installed beside the project and not into it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests/clients/mem0_offline/cases.py"
VERSION = "mem0ai==2.2.1"


@pytest.fixture(scope="module")
def library(uv: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Mem0 and all that it needs; its versions are its own."""
    folder = tmp_path_factory.mktemp("mem0")
    command = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", str(folder), VERSION]
    done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=600)
    if done.returncode:
        pytest.skip("Mem0 cannot be installed here")
    return folder


@pytest.mark.clients
def test_facts_are_kept_in_mem0(library: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{library}"}
    done = subprocess.run(
        [sys.executable, str(CASES)],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        check=False,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"hold"' in done.stdout
