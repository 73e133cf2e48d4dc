"""Environments of other projects, each with what its lock pins."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

CLIENTS = Path(__file__).parent


@pytest.fixture(scope="session")
def uv() -> str:
    """The program that installs; ``make test-clients`` puts it beside this Python."""
    folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return shutil.which("uv", path=folders) or pytest.skip("uv is not there to install anything")


@pytest.fixture(scope="session")
def python_of(uv: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The Python of a client's environment, by the client's name; it is made once in a run."""

    @cache
    def make(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        python = folder / "bin" / "python"
        lock = CLIENTS / name / "requirements.lock"
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder], check=True)
        command = [uv, "pip", "install", "--quiet", "--python", python, "--require-hashes", "-r", lock]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode:
            pytest.skip(f"{name} cannot be installed here: {done.stderr.strip()[-300:]}")
        return python

    return make
