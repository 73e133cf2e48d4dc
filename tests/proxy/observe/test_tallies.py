"""Tallies are exposed like the library's own metrics."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, Summary, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from proxy.observe.metrics import Tally

BOUNDS = (0.1, 1.0, 5.0)
VALUES = (0.05, 0.1, 0.100001, 1.0, 3, 80.0, 0)


def exposition(tally: Tally) -> str:
    registry = CollectorRegistry()
    registry.register(tally)
    return without_times(generate_latest(registry).decode())


def without_times(text: str) -> str:
    return re.sub(r"(?m)^(\w+_created\S*) .*$", r"\1", text)


@pytest.mark.parametrize("kind", [Counter, Summary, Histogram])
def test_numbers_look_like_the_librarys(kind: type[Counter | Summary | Histogram]) -> None:
    registry = CollectorRegistry()
    buckets = {"buckets": BOUNDS} if kind is Histogram else {}
    theirs = kind("things", "What they are", ("place", "end"), registry=registry, **buckets)
    ours = Tally(
        kind.__name__.lower(), "things", "What they are", ("place", "end"), BOUNDS if buckets else ()
    )
    assert exposition(ours) == without_times(generate_latest(registry).decode())
    for labels in (("here", 'a "quoted" one'), ("there", "")):
        for value in VALUES:
            child = theirs.labels(*labels)
            child.inc(value) if isinstance(child, Counter) else child.observe(value)
            ours.add(labels, value)
    assert exposition(ours) == without_times(generate_latest(registry).decode())


def test_a_counter_without_labels_begins_at_nothing() -> None:
    assert "things_total 0.0" in exposition(Tally("counter", "things", "What they are"))


SHARING = """
import sys
from proxy.observe.metrics import share_between_processes
share_between_processes(sys.argv[1])
from proxy.observe.metrics import Tally
tally = Tally("histogram", "things", "What they are", ("place",), (1.0, 5.0))
for value in (0.5, 3.0):
    tally.add(("here",), value)
    tally.share()
tally.share()
"""
MERGING = """
import sys
from pathlib import Path
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
registry = CollectorRegistry()
MultiProcessCollector(registry, sys.argv[1])
print(generate_latest(registry).decode())
"""


def test_several_processes_add_up_what_each_has_shared(tmp_path: Path) -> None:
    def run(program: str) -> str:
        command = [sys.executable, "-c", program, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    for _ in range(2):
        run(SHARING)
    (family,) = text_string_to_metric_families(run(MERGING))
    assert {(sample.name, sample.labels.get("le")): sample.value for sample in family.samples} == {
        ("things_bucket", "1.0"): 2,
        ("things_bucket", "5.0"): 4,
        ("things_bucket", "+Inf"): 4,
        ("things_count", None): 4,
        ("things_sum", None): 7,
    }
