"""Several processes at one port behave as one."""

import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis

from tests.peers.fake_upstream import (
    DONE,
    END,
    HANG,
    HEAD,
    ROLE,
    FakeUpstream,
    Received,
    Step,
    answer,
    by_default,
    chunk,
    completion,
    delta,
)
from tests.peers.redis_server import RedisServer, single
from tests.serving_process import ServingProcess, until
from tests.waiting import awaited

CONFIG = """
listen: {port: "${PORT}", grace: 3s}
memory: {sessions: "${MEMORY_URL}", deadline: 1s}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", model: one}}
pipelines: {default: {upstreams: [main], request: [restore_history]}}
"""
CALLS = range(24)
Start = Callable[..., ServingProcess]


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with single(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def start(tmp_path: Path, upstream: FakeUpstream, redis: RedisServer) -> Iterator[Start]:
    """Two processes at one port, on Redis."""
    started: list[ServingProcess] = []

    def begin(config: str = CONFIG) -> ServingProcess:
        environ = {"UPSTREAM_BASE_URL": upstream.url, "MEMORY_URL": f"{redis.url}?prefix={tmp_path.name}:"}
        environ["TMPDIR"] = str(tmp_path)
        started.append(ServingProcess(tmp_path, config, "--workers", "2", **environ).__enter__())
        assert until(lambda: len(started[-1].members) == 2)
        return started[-1]

    yield begin
    for each in started:
        each.__exit__()


def all_of(calls: Iterable[Callable[[], httpx2.Response]]) -> list[httpx2.Response]:
    with ThreadPoolExecutor(64) as pool:
        return [each.result() for each in [pool.submit(call) for call in calls]]


def value(serving: ServingProcess, name: str, /, **labels: str) -> float:
    families = text_string_to_metric_families(serving.client.get("/metrics").text)
    samples = (sample for family in families for sample in family.samples if sample.name == name)
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def users(requests: list[Received]) -> list[list[str]]:
    return [[m["content"] for m in each.json["messages"] if m["role"] == "user"] for each in requests]


def test_a_session_goes_on_whoever_answers(start: Start, upstream: FakeUpstream) -> None:
    serving = start()
    for turn in range(1, 9):
        message = {"role": "user", "content": f"Turn {turn}", "turn_id": turn}
        body = {"messages": [message], "turn_id": turn}
        sent = httpx2.post(
            f"{serving.root}/v1/chat/completions", json=body, headers={"X-Session-Id": "s"}, timeout=10
        )
        assert sent.status_code == 200
        assert until(lambda: value(serving, "turnkeeper_memory_queue_turns") == 0)
        time.sleep(0.05)
    assert users(upstream.requests)[-1] == [f"Turn {turn}" for turn in range(1, 9)]


def test_numbers_are_of_all(start: Start) -> None:
    serving = start()
    assert {each.status_code for each in all_of([serving.chat for _ in CALLS])} == {200}
    wanted = float(len(CALLS))
    assert until(lambda: value(serving, "turnkeeper_turns_total", outcome="done") == wanted, 3)
    for _ in range(5):  # whoever is asked says the same
        metrics = httpx2.get(f"{serving.root}/metrics").text
        assert f'turnkeeper_turns_total{{outcome="done",pipeline="default",status="200"}} {wanted}' in metrics
    assert len(set(re.findall(r'process_open_fds{pid="(\d+)"}', metrics))) == 2
    assert "turnkeeper_info{" in metrics


def test_numbers_are_told_while_a_process_begins_to_count(start: Start, tmp_path: Path) -> None:
    """The library makes a file first and gives it its size a moment later."""
    serving = start()
    assert serving.chat().status_code == 200
    (folder,) = tmp_path.glob("turnkeeper-*/")
    (folder / "counter_1.db").touch()
    assert {httpx2.get(f"{serving.root}/metrics").status_code for _ in range(5)} == {200}
    assert until(lambda: value(serving, "turnkeeper_turns_total") == 1, 3)


def test_limits_are_of_all(start: Start) -> None:
    serving = start(CONFIG + "limits: {requests_per_minute: 10}\n")
    answers = all_of([serving.chat for _ in CALLS])
    assert sorted({each.status_code for each in answers}) == [200, 429]
    assert sum(each.status_code == 200 for each in answers) == 10


TALKED = [
    {"role": role, "content": f"{each} " + "word " * 3_000}
    for each in range(9)
    for role in ("user", "assistant")
]


@pytest.mark.parametrize("talk", [[], TALKED], ids=["a short talk", "a talk that no note holds"])
def test_a_newer_request_takes_an_older_ones_place_whoever_answers(
    start: Start, upstream: FakeUpstream, talk: list[dict[str, str]]
) -> None:
    """Of so many pairs some meet in one process and some do not."""

    def script(request: Received) -> Iterable[Step]:
        return [HEAD, HANG] if request.json["messages"][-1]["content"] == "Tell" else by_default(request)

    upstream.script = script

    def call(text: str, session: str) -> httpx2.Response:
        messages = [*talk, {"role": "user", "content": text}]
        return serving.chat(session=session, stream=True, messages=messages)

    serving = start()
    time.sleep(0.5)
    with ThreadPoolExecutor(64) as pool:
        older = [pool.submit(call, "Tell", f"s{each}") for each in CALLS]
        assert until(lambda: len(upstream.requests) == len(CALLS))
        newer = [pool.submit(call, "Tell me a joke", f"s{each}") for each in CALLS]
        assert [each.result().status_code for each in newer] == [200] * len(CALLS)
        assert [each.result().status_code for each in older] == [409] * len(CALLS)
    assert "Traceback" not in serving.log


def looking(serving: ServingProcess) -> list[str]:
    """The sessions of the turns that are shown from now on."""
    seen: list[str] = []

    def look_on() -> None:
        with httpx2.stream("GET", f"{serving.root}/v1/turns", timeout=10) as got:
            events = (line[6:] for line in got.iter_lines() if line.startswith("data: "))
            seen.extend(json.loads(line)["session"] for line in events)

    threading.Thread(target=look_on, daemon=True).start()
    return seen


def test_whoever_looks_on_sees_all_turns(start: Start) -> None:
    serving = start()
    seen = looking(serving)
    all_of([lambda each=each: serving.chat("Hi", f"s{each}") for each in CALLS])
    assert until(lambda: set(seen) == {f"s{each}" for each in CALLS}, 5), seen


def test_a_number_that_nobody_counts_to_costs_no_answer_and_no_figure(start: Start) -> None:
    serving = start()
    seen = looking(serving)
    number = 10**400
    words = [{"role": "user", "content": "Hi", "metadata": {"number": number}}]
    calls = [
        lambda each=each: serving.chat(session=f"s{each}", stream=True, turn_id=number, messages=words)
        for each in CALLS
    ]
    assert all(answer.content.endswith(DONE) for answer in all_of(calls))
    assert until(lambda: value(serving, "turnkeeper_turns_total") == len(CALLS), 3)
    assert until(lambda: set(seen) == {f"s{each}" for each in CALLS}, 5), seen
    assert "Traceback" not in serving.log


def pages(serving: ServingProcess, path: str, count: int = 12) -> list[httpx2.Response]:
    """A page over as many connections, as one visitor."""
    first = httpx2.get(f"{serving.root}{path}", timeout=10)
    visit = first.headers["set-cookie"].partition(";")[0]
    return all_of(
        [lambda: httpx2.get(f"{serving.root}{path}", headers={"cookie": visit}, timeout=10)] * count
    )


def test_the_page_is_one_whoever_shows_it(start: Start) -> None:
    shown = [page.text for page in pages(start(), "/playground")]
    assert len({token for page in shown for token in re.findall('name="token" value="(.+?)"', page)}) == 1
    assert {place for page in shown for place in re.findall(r"process \d of 2", page)} == {
        "process 1 of 2",
        "process 2 of 2",
    }


def test_what_is_deleted_is_gone_from_all(start: Start) -> None:
    serving = start()
    assert {each.status_code for each in all_of([lambda: serving.chat("Hi", "s-gone")] * 12)} <= {200, 409}
    assert until(lambda: all("s-gone" in page.text for page in pages(serving, "/")))
    assert serving.client.delete("/v1/memory/sessions/s-gone").status_code in {200, 204}
    assert until(lambda: not any("s-gone" in page.text for page in pages(serving, "/")), 5)


def test_the_live_pages_of_all_show_the_words_until_they_are_forgotten(start: Start) -> None:
    serving = start(f"{CONFIG}\ntraces: {{keep: 50, content: true}}\n")
    serving.chat("What is the price of the blue one?", "s-words", user="ann")

    def shows(words: str) -> set[bool]:
        return {words in page.text for page in pages(serving, "/")}

    assert until(lambda: shows("price of the blue one") == {True}, 10)
    assert serving.client.delete("/v1/memory/users/ann").status_code == 204
    assert until(lambda: shows("price of the blue one") == {False}, 10)


def listed_sessions(serving: ServingProcess) -> list[str]:
    """The sessions of the turns that whoever comes to look on is shown at once."""
    shown: list[str] = []
    with suppress(httpx2.ReadTimeout), httpx2.stream("GET", f"{serving.root}/v1/turns", timeout=0.5) as got:
        lines = (line[6:] for line in got.iter_lines() if line.startswith("data: "))
        shown.extend(json.loads(line)["session"] for line in lines)
    return sorted(shown)


def test_whoever_is_forgotten_is_told_of_by_none(start: Start) -> None:
    serving = start()
    all_of([lambda each=each: serving.chat("Hi", f"s{each}", user=f"u{each % 2}") for each in CALLS])
    assert until(
        lambda: all_of([lambda: listed_sessions(serving)] * 6) == [sorted(f"s{each}" for each in CALLS)] * 6,
        10,
    )
    assert serving.client.delete("/v1/memory/users/u1").status_code == 204
    left = sorted(f"s{each}" for each in CALLS if each % 2 == 0)
    assert until(lambda: all_of([lambda: listed_sessions(serving)] * 6) == [left] * 6, 10)


def test_one_that_dies_is_started_again(start: Start) -> None:
    serving = start()
    before = serving.members
    os.kill(before[0], signal.SIGKILL)
    assert until(lambda: len(serving.members) == 2 and before[0] not in serving.members)
    assert before[1] in serving.members
    assert {each.status_code for each in all_of([serving.chat for _ in CALLS])} == {200}
    assert until(lambda: f"(pid {before[0]}) has ended; it is started again" in serving.log)


def test_what_a_dead_one_counted_stays_counted(start: Start) -> None:
    serving = start()
    all_of([serving.chat for _ in CALLS])
    assert until(lambda: value(serving, "turnkeeper_turns_total") == len(CALLS), 3)
    os.kill(serving.members[0], signal.SIGKILL)
    assert until(lambda: len(serving.members) == 2)
    time.sleep(1)
    assert value(serving, "turnkeeper_turns_total") == len(CALLS)


def test_all_read_a_new_configuration_and_none_a_bad_one(start: Start, upstream: FakeUpstream) -> None:
    serving = start()
    serving.path.write_text(CONFIG.replace("model: one", "model: two"))
    serving.hang_up()
    assert until(lambda: serving.log.count("was read again") == 2)
    all_of([serving.chat for _ in CALLS])
    assert {each.json["model"] for each in upstream.requests} == {"two"}
    serving.path.write_text(CONFIG.replace("upstreams:", "upstreamz:"))
    serving.hang_up()
    assert until(lambda: "new configuration is not used" in serving.log)
    time.sleep(0.2)
    assert serving.log.count("new configuration is not used") == 1
    assert {each.status_code for each in all_of([serving.chat for _ in CALLS])} == {200}
    assert {each.json["model"] for each in upstream.requests} == {"two"}


def test_a_clean_end_lets_streams_end_and_writes_all(
    start: Start, upstream: FakeUpstream, redis: RedisServer
) -> None:
    upstream.says(HEAD, chunk(ROLE), chunk(delta(content="one")), 0.7, chunk(DONE), END)
    serving = start()
    with ThreadPoolExecutor(64) as pool:
        answers = [pool.submit(serving.chat, "Hi", f"end{each}", stream=True) for each in CALLS]
        assert until(lambda: len(upstream.requests) == len(CALLS))
        time.sleep(0.2)
        assert serving.stop() == 0
        assert all(each.result().content.endswith(DONE) for each in answers)
    held = {key.decode() for key in redis.ask("KEYS", "*:end*:hot") or []}
    assert len(held) == len(CALLS), serving.log


def test_without_the_first_process_the_others_end(start: Start) -> None:
    serving = start()
    members = serving.members
    serving.process.kill()
    assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in members))


def test_a_store_of_one_process_is_refused(tmp_path: Path) -> None:
    config = CONFIG.replace("${MEMORY_URL}", "memory:").replace("${UPSTREAM_BASE_URL}", "practice:")
    serving = ServingProcess(tmp_path, config, "--workers", "2")
    with pytest.raises(AssertionError, match="which each process would have for itself"):
        serving.__enter__()
    assert serving.process.wait(5) == 1
    serving.__exit__()


def test_an_orphan_that_ends_takes_nobody_along(tmp_path: Path, upstream: FakeUpstream) -> None:
    """The first process of a container is left with all that lose their parent."""
    environ = {"UPSTREAM_BASE_URL": upstream.url, "MEMORY_URL": f"sqlite:{tmp_path / 'sessions.db'}"}
    serving = ServingProcess(tmp_path, CONFIG, "--workers", "2", **environ)
    serving.command = ["sh", "-c", 'sleep 60 & exec "$@"', "sh", *serving.command]
    with serving:
        assert until(lambda: len(serving.members) == 3)
        (orphan,) = [pid for pid in serving.members if Path(f"/proc/{pid}/comm").read_text() == "sleep\n"]
        os.kill(orphan, signal.SIGKILL)
        assert until(lambda: serving.process.poll() is not None or len(serving.members) == 2)
        assert serving.chat().status_code == 200
        assert "has ended" not in serving.log
        assert serving.stop() == 0


def test_who_comes_while_the_last_answers_end_is_refused(start: Start, upstream: FakeUpstream) -> None:
    upstream.says(HEAD, chunk(ROLE), HANG)
    serving = start(CONFIG.replace("grace: 3s", "grace: 20s"))
    call = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    with httpx2.stream("POST", f"{serving.root}/v1/chat/completions", json=call, timeout=10):
        serving.process.terminate()
        assert until(lambda: is_refused(serving.port))
        assert serving.process.poll() is None
    assert serving.process.wait(15) == 0


def is_refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_store_of_one_process_is_not_taken_over(start: Start) -> None:
    serving = start()
    serving.path.write_text(CONFIG.replace("${MEMORY_URL}", "memory:"))
    serving.hang_up()
    assert until(lambda: "which each process would have for itself" in serving.log)
    assert "was read again" not in serving.log
    assert serving.chat().status_code == 200


def test_on_redis_each_process_shows_the_turns_of_all(
    start: Start, redis: RedisServer, tmp_path: Path
) -> None:
    serving = start()
    one, other = serving.members
    with stopped(one):
        ask(serving)
        (turn,) = awaited(lambda: turns_shown(serving, 1))
        with Redis.from_url(redis.url) as store:
            awaited(lambda: any(store.hlen(key) for key in store.keys(f"{tmp_path.name}:*:turns")))
    with stopped(other):
        assert httpx2.get(f"{serving.root}/turns/{turn}").status_code == 200


def test_a_turn_is_looked_at_whichever_process_is_asked_for_it_first(start: Start, tmp_path: Path) -> None:
    serving = start(CONFIG.replace("${MEMORY_URL}", f"sqlite:{tmp_path / 'memory.db'}"))
    one, other = serving.members
    with stopped(one):
        ask(serving)
        (turn,) = awaited(lambda: turns_shown(serving, 1))
    with stopped(other):
        onward = httpx2.get(f"{serving.root}/turns/{turn}")
        assert (onward.status_code, onward.headers["connection"]) == (303, "close")
        nobodys = httpx2.get(f"{serving.root}/turns/{turn}", follow_redirects=True)
        assert nobodys.status_code == 404
        assert "None of the processes that answered keeps this turn" in nobodys.text
    with stopped(one):
        assert httpx2.get(f"{serving.root}{onward.headers['location']}").status_code == 200


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Meanwhile whoever comes is answered by the other process."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def ask(serving: ServingProcess) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    assert httpx2.post(f"{serving.root}/v1/chat/completions", json=body).status_code == 200


def turns_shown(serving: ServingProcess, count: int) -> set[str]:
    """The turns that a page names, once it names so many."""
    ids = set(re.findall(r'data-turn="([^"]+)"', httpx2.get(f"{serving.root}/").text))
    return ids if len(ids) == count else set()


SUMMARISED = """
listen: {port: "${PORT}", grace: 3s}
memory:
  sessions: "${MEMORY_URL}"
  deadline: 1s
  window: {max_messages: 10, keep_messages: 4}
  summaries: {upstream: main, model: notes, timeout: 60s}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", model: one}}
pipelines: {default: {upstreams: [main], request: [restore_history, inject_summaries]}}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody knows who has died")
def test_what_a_process_was_at_when_it_was_killed_is_soon_done_by_another(
    start: Start, upstream: FakeUpstream
) -> None:
    silent = True

    def answering(request: Received) -> list[Step]:
        if request.json["model"] != "notes":
            return answer(completion("Yes."))
        return [60.0] if silent else answer(completion("Turns 0 to 4."))

    upstream.script = answering
    serving = start(SUMMARISED)
    for turn in range(7):
        assert serving.chat(f"Turn {turn}", "long", turn_id=turn).status_code == 200
        assert until(lambda: value(serving, "turnkeeper_memory_queue_turns") == 0)
    assert until(lambda: any(request.json["model"] == "notes" for request in upstream.requests))
    silent = False
    assert serving.background is not None
    os.kill(serving.background, signal.SIGKILL)
    found = awaited(lambda: summaries(serving), 6)
    assert [one["text"] for one in found] == ["Turns 0 to 4."]


def summaries(serving: ServingProcess) -> list[dict[str, str]]:
    with suppress(httpx2.TransportError):
        got = httpx2.get(f"{serving.root}/v1/memory/sessions/long/summaries")
        return list(got.json()["data"]) if got.status_code == 200 else []
    return []
