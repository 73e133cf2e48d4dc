"""The benches run; what they measure is looked at by people."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_is_lost_and_little_grows_in_a_few_seconds_of_mixed_load(workers):
    options = ["--minutes", "0.06", "--callers", "20", "--grown", "0.4", "--workers", str(workers)]
    told = run("bench.soak", *options)
    assert "lost: 0" in told


def test_the_proxy_is_measured_at_each_level_with_and_without_memory():
    table = run("bench.proxy", "--peers", "", "--levels", "1,4", "--memory", "off,sqlite", "--seconds", "0.6")
    rows = [line.split(" | ") for line in table.splitlines()[2:]]
    assert [(row[0].strip("| "), row[1]) for row in rows] == [
        ("turnkeeper, no session", "1"),
        ("turnkeeper, no session", "4"),
        ("turnkeeper, sqlite", "1"),
        ("turnkeeper, sqlite", "4"),
    ]
    assert all(float(row[2]) > 0 for row in rows)
    assert all(row[-1].strip(" |") == "0" for row in rows), "no stream failed"
