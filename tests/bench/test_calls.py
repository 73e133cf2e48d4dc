"""How many Python calls a turn takes on the thread that serves it, early and late in a conversation."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.calls import CHUNKS

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(300)  # it is much to count, and the machine may be busy
A_TURN, A_WHOLE_ANSWER, A_CHUNK = 280, 285, 3
A_TURN_OF_A_SESSION = 660


@pytest.fixture(scope="module")
def calls() -> dict[str, float]:
    """What ``bench.calls`` counts, in a process of its own: nothing else is logged or traced there."""
    command = [sys.executable, "-m", "bench.calls"]
    counted = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert counted.returncode == 0, counted.stdout + counted.stderr
    rows = (line.rpartition(": ") for line in counted.stdout.splitlines())
    return {kind: float(count) for kind, _, count in rows}


def test_a_turn_without_a_session(calls: dict[str, float]) -> None:
    assert 0 < calls["a turn without a session"] <= A_TURN + A_CHUNK * CHUNKS
    assert 0 < calls["a whole answer without a session"] <= A_WHOLE_ANSWER


def test_one_chunk_more(calls: dict[str, float]) -> None:
    assert 0 < calls["one chunk more"] <= A_CHUNK


@pytest.mark.parametrize("turn", ["the first turn", "turn 20", "turn 800"])
def test_a_turn_of_a_session(calls: dict[str, float], turn: str) -> None:
    assert calls["a turn without a session"] < calls[f"{turn} of a session"] <= A_TURN_OF_A_SESSION


def test_a_store_that_does_not_answer_is_no_measure() -> None:
    command = [sys.executable, "-m", "bench.calls", "--memory", "redis://127.0.0.1:1"]
    counted = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert (counted.returncode, counted.stdout) == (1, "")
    assert "--memory does not answer" in counted.stderr
