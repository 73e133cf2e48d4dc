"""How many Python calls a turn takes in the background process, in calls without pauses and with them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("memory", "together", "by_itself"), [([], 260, 850), (["--memory", "redis"], 290, 130)]
)
def test_a_turn_costs_the_background_no_more_calls(memory: list[str], together: int, by_itself: int) -> None:
    command = [sys.executable, "-m", "bench.background", "--turns", "20", *memory]
    counted = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert counted.returncode == 0, counted.stdout + counted.stderr
    rows = dict(line.rsplit(": ", 1) for line in counted.stdout.splitlines())
    calls = {kind: int(row.partition(" calls")[0]) for kind, row in rows.items()}
    assert 0 < calls["a turn of a call of 16"] <= together
    assert 0 < calls["turn 20"] <= by_itself
