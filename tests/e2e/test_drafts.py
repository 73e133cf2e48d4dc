"""Filters that a user writes on the page are bounded, wherever they are tried, and hold up nobody else."""

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from tests.leftovers import descendants, processes
from tests.page_visit import Visit, words
from tests.peers.fake_upstream import FakeUpstream
from tests.serving_process import LISTEN, ServingProcess
from tests.waiting import awaited, until

SPIN = '''
from filters.base import AnswerFilter, Context, Delta, Messages, RequestFilter


class Spin(RequestFilter):
    """Never ends."""

    def apply(self, messages: Messages, context: Context) -> Messages:
        while True:
            pass


class SpinAnswer(AnswerFilter):
    """Never ends, either."""

    def open(self, context: Context) -> "SpinAnswer":
        return self

    def feed(self, delta: Delta) -> Delta:
        while True:
            pass

    def close(self) -> Delta:
        return {}
'''
CONFIG = (
    LISTEN
    + """
keys: "one:secret-1,two:secret-2"
filters: [spin.py]
traces: {content: true}
memory: {sessions: "memory:"}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default: {upstreams: [main], request: [repair_history]}
  endless: {upstreams: [main], request: [spin]}
"""
)
ENDLESS = "request: [spin]"
ENDLESS_ANSWER = "request: []\nanswer: [spin]"
GROWING = "request:\n  - rewrite: " + json.dumps({"replace": [{"pattern": "a", "with": "a" * 1000}] * 2})
MANY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}] * 2000})
ONE = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]})


@pytest.fixture
def serving(tmp_path: Path, upstream: FakeUpstream) -> Iterator[ServingProcess]:
    (tmp_path / "spin.py").write_text(SPIN)
    with ServingProcess(tmp_path, CONFIG, UPSTREAM_BASE_URL=upstream.url) as process:
        yield process


class Tenant(Visit):
    """A browser that has signed in."""

    def __init__(self, serving: ServingProcess, key: str) -> None:
        self.key = key
        self.client = httpx2.Client(base_url=serving.root, timeout=60, verify=False)
        assert self.post("/login", seen="/login", key=key).status_code == 303

    def turn(self) -> str:
        """The page of a turn that it has taken, in the conversation 'call'."""
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
        headers = {"Authorization": f"Bearer {self.key}", "X-Session-Id": "call"}
        assert self.client.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
        return awaited(lambda: re.search(r'href="(/turns/[^"?]+)', self.page("/")))[1]

    def trial(self, yaml: str, request: str = ONE) -> httpx2.Response:
        return self.post("/playground", seen="/", yaml=yaml, request=request)

    def again(self, yaml: str) -> httpx2.Response:
        """A turn that is run again."""
        turn = self.turn()
        return self.post(f"{turn}/run", seen=turn, yaml=yaml)

    def replay(self, yaml: str) -> httpx2.Response:
        """A call that is replayed."""
        self.turn()
        path = "/conversations/call/replay"
        return self.post(path, seen=path, yaml=yaml)


def tree(pid: int) -> set[int]:
    """A process and all that it has started, and what those have."""
    listed = processes()
    return set(descendants({pid: listed[pid]}, listed))


def spinning(pid: int) -> bool:
    """Whether a draft is being tried: its process has forked another."""
    return len(tree(pid)) >= 4


def test_a_draft_that_grows_is_stopped_and_nobody_else_notices(serving: ServingProcess) -> None:
    one, two = Tenant(serving, "secret-1"), Tenant(serving, "secret-2")
    turn = two.turn()
    with ThreadPoolExecutor() as pool:
        growing = pool.submit(one.trial, GROWING, MANY)
        while not growing.done():
            assert two.get(turn).status_code == 200
        got = growing.result()
    assert got.status_code == 200
    assert "The draft needed more than 256 MB of memory, and was stopped." in words(got.text)
    assert two.get(turn).status_code == 200
    assert "The prompt that would be sent" in words(two.trial("request: [repair_history]").text)


def test_a_draft_that_does_not_end_is_stopped(serving: ServingProcess) -> None:
    one, two = Tenant(serving, "secret-1"), Tenant(serving, "secret-2")
    turn = two.turn()
    with ThreadPoolExecutor() as pool:
        endless = pool.submit(one.trial, ENDLESS)
        assert until(lambda: spinning(serving.process.pid), 30)
        assert two.get(turn).status_code == 200
        assert "The prompt that would be sent" in words(two.trial("request: [repair_history]").text)
        assert re.search(
            "The draft took longer than (5 s to compute|20 s), and was stopped.", words(endless.result().text)
        )


@pytest.mark.parametrize(
    ("place", "yaml"),
    [
        (Tenant.trial, ENDLESS),
        (Tenant.again, ENDLESS),
        (Tenant.again, ENDLESS_ANSWER),
        (Tenant.replay, ENDLESS),
    ],
)
def test_beside_a_draft_that_does_not_end_others_are_answered_and_sigterm_ends_it_at_once(
    serving: ServingProcess, place: Callable[[Tenant, str], httpx2.Response], yaml: str
) -> None:
    one, two = Tenant(serving, "secret-1"), Tenant(serving, "secret-2")
    with ThreadPoolExecutor() as pool:
        endless = pool.submit(place, one, yaml)
        assert until(lambda: spinning(serving.process.pid), 30)
        assert two.get(two.turn()).status_code == 200
        assert until(lambda: spinning(serving.process.pid), 30)
        everything = tree(serving.process.pid)
        serving.process.terminate()
        got = endless.result()
    assert "Turnkeeper is shutting down; try again." in words(got.text), "and not when the grace is over"
    assert serving.process.wait(20) == 0
    assert until(lambda: not everything & set(processes()))


@pytest.mark.parametrize(
    ("place", "yaml"), [(Tenant.again, ENDLESS), (Tenant.again, ENDLESS_ANSWER), (Tenant.replay, ENDLESS)]
)
def test_a_turn_or_a_call_that_is_tried_with_filters_that_do_not_end_says_so(
    serving: ServingProcess, place: Callable[[Tenant, str], httpx2.Response], yaml: str
) -> None:
    got = place(Tenant(serving, "secret-1"), yaml)
    assert got.status_code == 200
    assert re.search("The draft took longer than (5 s to compute|20 s), and was stopped.", words(got.text))


def test_drafts_of_a_server_that_is_killed_end_by_themselves(serving: ServingProcess) -> None:
    one = Tenant(serving, "secret-1")
    with ThreadPoolExecutor() as pool:
        endless = pool.submit(one.trial, ENDLESS)
        assert until(lambda: spinning(serving.process.pid), 30)
        everything = tree(serving.process.pid)
        serving.kill()
        assert endless.exception()
    assert until(lambda: not everything & set(processes()), 40)


def test_of_many_drafts_some_are_refused(serving: ServingProcess) -> None:
    tenants = [Tenant(serving, "secret-1") for _ in range(10)]
    with ThreadPoolExecutor(10) as pool:
        trials = [pool.submit(tenant.trial, ENDLESS) for tenant in tenants]
        done = awaited(lambda: [trial.result() for trial in trials if trial.done()], 30)
        serving.process.terminate()
    assert done[0].status_code == 503
    assert int(done[0].headers["retry-after"]) > 0
    assert "Too many drafts are being tried now" in words(done[0].text)


def test_a_draft_counts_within_the_limits_by_its_size(tmp_path: Path, upstream: FakeUpstream) -> None:
    (tmp_path / "spin.py").write_text(SPIN)
    config = CONFIG + "limits: {requests_per_minute: 3}\n"
    with ServingProcess(tmp_path, config, UPSTREAM_BASE_URL=upstream.url) as serving:
        one, two = Tenant(serving, "secret-1"), Tenant(serving, "secret-2")
        long = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 200_000}]})
        assert one.trial("request: []", long).headers["x-ratelimit-remaining-requests"] == "0"
        got = one.trial("request: []")
        assert (got.status_code, got.headers["retry-after"] > "0") == (429, True)
        assert "This key may have 3 requests in a minute." in words(got.text)
        assert "request: []" in got.text, "what was written is still there"
        assert two.trial("request: []").status_code == 200
