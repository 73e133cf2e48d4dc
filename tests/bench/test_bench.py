"""The benches run; their results are for readers."""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from bench import conversation
from bench.memory import ROWS, send
from bench.victim import attacks, served
from filters.base import AnswerFilter, RequestFilter
from proxy.page import app as pages
from proxy.page import conversations, health, live, playground, turns, users
from proxy.server.routes import Routes
from proxy.settings.filter_registry import FilterRegistry
from tests.waiting import until

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("memory", "workers"), [("sqlite", 2), ("redis", 1)])
def test_nothing_is_lost_and_little_grows_in_a_few_seconds_of_mixed_load(memory, workers):
    short = ["--minutes", "0.1", "--callers", "20", "--pause", "0.3", "--restart", "2", "--grown", "1"]
    short += ["--large", "2"]
    told = run("bench.soak", *short, "--memory", memory, "--workers", str(workers))
    assert "errors: 0" in told
    assert "lost: 0 counted by the server; 0 faults" in told
    assert re.search("reloads: [1-9]", told)
    assert re.search("large requests: [1-9]", told)
    assert bool(re.search("restarts of Redis: [1-9]", told)) == (memory == "redis")


def test_the_proxy_is_measured_under_each_load_with_and_without_memory():
    loads = ["--levels", "1,4", "--whole", "2", "--growth", "1,45", "--held", "20"]
    table = run("bench.proxy", "--peers", "", *loads, "--memory", "off,sqlite", "--seconds", "0.6")
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    common = ["1 streams", "4 streams", "whole answers, 2 callers"]
    grown = ["from turn 1 on", "from turn 45 on", "20 calls held"]
    assert [(row[0], row[1]) for row in rows] == [
        *(("turnkeeper, no session", kind) for kind in common),
        *(("turnkeeper, sqlite", kind) for kind in [*common, *grown]),
    ]
    assert all(float(row[2]) > 0 for row in rows)
    assert all(float(row[4]) > 0 for row in rows)
    assert all(row[-1] == "0" for row in rows), "no stream failed"


def test_a_caller_who_pauses_is_measured_within_a_session_and_without_one():
    told = run("bench.caller", "--turns", "2", "--pause", "0", "--memory", "sqlite")
    memory, within, without, adds = told.splitlines()[-1].strip("| ").split(" | ")
    assert memory == "sqlite"
    assert float(within.split()[0]) > 0
    assert float(without.split()[0]) > 0
    assert abs(float(adds)) < 1000


def test_what_others_wait_for_one_caller_is_measured():
    (row,) = run("bench.victim", "--times", "1", "--only", "700,000 metadata keys").splitlines()[2:]
    name, answered, stream, call, durable = row.strip("| ").split(" | ")
    assert name == "700,000 metadata keys"
    assert answered.startswith("413 in ")
    assert all(re.fullmatch(r"-?\d+ \(-?\d+\)", waited) for waited in (stream, call, durable))


def test_every_path_page_and_filter_is_tried_at_its_largest():
    rows = list(attacks())
    requests = (request for row in rows if row.stored for request in row.requests())
    sent = {f"{request.method} {request.path.partition('?')[0]}" for request in requests}
    untried = {name for name in served_paths() if not any(map(pattern(name).fullmatch, sent))}
    assert untried == set()
    names = FilterRegistry(installed=False).names
    assert all(any(f"the filter {name}, " in row.name for row in rows) for name in names(RequestFilter))
    assert all(any(f"answer filter {name}, " in row.name for row in rows) for name in names(AnswerFilter))


def served_paths():
    """The method and path of all but chat and explanations; models are listed under several bases alike."""
    for method, path, _ in Routes(None).table:
        if method != "HEAD" and ("/models" not in path or path.startswith("/v1/")):
            yield f"{method} {path}"
    for module in (live, conversations, turns, playground, users, health):
        yield from (f"{method} {path}" for method, path, _ in module.ROUTES)
    yield from (f"{method} {path}" for method, path, _ in pages._ROUTES)


def pattern(name):
    return re.compile(re.sub(r"\{[^}]+\}", "[^/]+", name))


def test_what_large_requests_leave_behind_is_measured():
    told = run("bench.memory", "--seconds", "0", "--rows", "one delta")
    rows = [line.strip("| ").split(" | ") for line in told.splitlines()[2:]]
    assert [row[0] for row in rows] == ["nothing yet", "eight answers in one delta of 10 MB"]
    assert rows[1][1].startswith("200 in ")
    assert float(rows[1][2]) >= float(rows[0][-1]) > 0


@pytest.mark.faults
def test_the_memory_of_large_requests_and_answers_comes_back(tmp_path: Path):
    rows = (
        "24 sessions with texts of 15 MB",
        "eight streams of 60 MB in sessions",
        "eight whole answers of 60 MB",
    )
    with served(tmp_path) as (port, server):
        for row in rows:
            with ThreadPoolExecutor(8) as senders:
                assert set(senders.map(partial(send, port), ROWS[row]())) == {"200"}
        assert until(lambda: server.spent().megabytes < 300, 60), server.spent()


@pytest.mark.timeout(300)
def test_what_the_background_asks_is_a_small_part_of_a_long_conversation():
    played = conversation.run("sqlite", turns=300, window=(60, 10), numbered=True, fails=False)
    assert played.facts > 0
    assert played.share < 0.07
