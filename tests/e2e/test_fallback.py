"""Before the first delta: which upstreams are asked, how often and how long, and what the client gets."""

import json
import time
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import pytest

from proxy.circuit import Backoff
from tests.peers.fake_upstream import (
    CLOSE,
    DONE,
    END,
    HANG,
    HEAD,
    RESET,
    ROLE,
    FakeUpstream,
    Received,
    Script,
    Step,
    answer,
    by_default,
    chunk,
    completion,
    delta,
    event,
    sse,
    stream_of,
)
from tests.peers.redis_server import free_port
from tests.proxy_server import ProxyServer, Serve
from tests.waiting import until

CONFIG = """
upstreams:
  main: {base_url: "${UPSTREAM_BASE_URL}", %s}
  reserve: {base_url: "${RESERVE}", model: spare, accepts: mistral, api_key: sk-spare, %s}
pipelines:
  default: {upstreams: [main, reserve], %s}
"""
NOBODY = """
upstreams: {main: {base_url: "http://127.0.0.1:1/v1"}}
pipelines: {default: {upstreams: [main], request: []}}
"""
QUICK = "first_token: 5s"
GOOD = stream_of("Hello", " there.")
BAD_GATEWAY = answer({"error": {"message": "Bad gateway."}}, 502)


def in_turn(*scripts: list[Step]) -> Script:
    """Each request gets the next script, and whatever comes behind them what OpenAI would say."""
    left = chain(scripts, repeat(None))

    def script(request: Received) -> Any:
        steps = next(left)
        return by_default(request) if steps is None else steps

    return script


@pytest.fixture
def reserve() -> Iterator[FakeUpstream]:
    with FakeUpstream() as fake:
        yield fake


@pytest.fixture
def both(serve: Serve, reserve: FakeUpstream) -> Serve:
    def start(main: str = QUICK, spare: str = QUICK, pipeline: str = "request: []") -> ProxyServer:
        return serve(CONFIG % (main, spare, pipeline), RESERVE=reserve.url)

    return start


def words(stream: bytes) -> str:
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: {")]
    deltas = [choice["delta"] for each in chunks for choice in each.get("choices", ())]
    return "".join(each.get("content") or "" for each in deltas)


PASSING = {
    "reset": [RESET],
    "closed": [CLOSE],
    "no HTTP": [b"SSH-2.0-x\r\n\r\n", CLOSE],
    "408": answer(b"", 408),
    "409": answer(b"", 409),
    "425": answer(b"", 425),
    "429": answer(b"", 429),
    "500": answer(b"", 500),
    "503 and soon": answer(b"", 503, "retry-after: 0\r\n"),
    "an error frame": sse(event(error={"message": "boom"}, choices=[])),
    "a role and an error": sse(ROLE + b'data: {"error": {"message": "boom"}}\n\n' + DONE),
    "a role alone": sse(ROLE + DONE),
    "nothing": [HEAD, END],
    "half a head": [HEAD[:60], CLOSE],
    "half a role": [HEAD, chunk(ROLE[:40]), RESET],
}


@pytest.mark.parametrize("name", PASSING)
def test_what_passes_is_asked_again_and_the_client_hears_nothing_of_it(
    proxy: ProxyServer, upstream: FakeUpstream, name: str
) -> None:
    upstream.script = in_turn(PASSING[name])
    got = proxy.chat(stream=True)
    assert got.status_code == 200
    assert got.content == GOOD
    assert len(upstream.requests) == 2
    assert upstream.requests[0].body == upstream.requests[1].body


STAYING: list[list[Step]] = [
    [HEAD, chunk(ROLE + event(error={"message": "boom"})), HANG],
    [HEAD, chunk(ROLE + DONE), HANG],
    [b"HTTP/1.1 302 Found\r\n\r\n", HANG],
]


@pytest.mark.parametrize("steps", STAYING)
def test_whoever_has_not_answered_is_left_at_once(
    proxy: ProxyServer, upstream: FakeUpstream, steps: list[Step]
) -> None:
    upstream.says(*steps)
    assert proxy.chat(stream=True).status_code == 502
    assert all(each.closed.wait(10) for each in upstream.requests)


@pytest.mark.parametrize(
    "steps",
    [[RESET], BAD_GATEWAY, answer({"error": {"message": "boom"}}), [answer(completion())[0][:-9], RESET]],
)
def test_a_whole_answer_is_asked_for_again_too(
    proxy: ProxyServer, upstream: FakeUpstream, steps: list[Step]
) -> None:
    upstream.script = in_turn(steps)
    assert proxy.chat().json() == completion()
    assert len(upstream.requests) == 2


@pytest.mark.parametrize("retries", [0, 2])
def test_it_is_asked_again_so_often_and_not_more(serve: Serve, upstream: FakeUpstream, retries: int) -> None:
    upstream.says(*BAD_GATEWAY)
    proxy = serve(f"""
upstreams: {{main: {{base_url: "${{UPSTREAM_BASE_URL}}", retries: {retries}}}}}
pipelines: {{default: {{upstreams: [main]}}}}
""")
    assert proxy.chat(stream=True).status_code == 502
    assert len(upstream.requests) == 1 + retries


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_bad_request_goes_back_to_the_client(
    both: Serve, upstream: FakeUpstream, reserve: FakeUpstream, status: int
) -> None:
    upstream.says(*answer({"error": {"message": "No."}}, status))
    got = both().chat(stream=True)
    assert got.status_code == status
    assert got.json()["error"]["message"] == "No."
    assert (len(upstream.requests), len(reserve.requests)) == (1, 0)


@pytest.mark.parametrize("status", [401, 403, 404, 307])
def test_what_an_upstream_refuses_for_itself_is_asked_of_the_next(
    both: Serve, upstream: FakeUpstream, reserve: FakeUpstream, status: int
) -> None:
    upstream.says(*answer(b"", status, "location: http://127.0.0.1:1/\r\n"))
    assert both().chat(stream=True).content == GOOD
    assert (len(upstream.requests), len(reserve.requests)) == (1, 1)


def test_each_upstream_gets_its_own_body_key_and_model(
    both: Serve, upstream: FakeUpstream, reserve: FakeUpstream
) -> None:
    upstream.says(RESET)
    proxy = both(main=f"{QUICK}, retries: 0, api_key: sk-main")
    assert proxy.chat(stream=True, stream_options={"include_usage": True}, user="u").status_code == 200
    assert upstream.last.json["model"] == "fake"
    assert upstream.last.json["user"] == "u"
    assert upstream.last.headers["authorization"] == "Bearer sk-main"
    assert reserve.last.json["model"] == "spare"
    assert "user" not in reserve.last.json
    assert reserve.last.headers["authorization"] == "Bearer sk-spare"


def test_without_a_model_the_first_upstream_decides(serve: Serve, reserve: FakeUpstream) -> None:
    config = (CONFIG % (QUICK, QUICK, "request: []")).replace("[main, reserve]", "[%s]")
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    unnamed = serve(config % "main, reserve", RESERVE=reserve.url)
    assert unnamed.client.post("/v1/chat/completions", json=body).status_code == 400
    reserve.says(*BAD_GATEWAY)
    named = serve(config % "reserve, main", RESERVE=reserve.url)
    assert named.client.post("/v1/chat/completions", json=body).json()["error"]["message"] == "Bad gateway."


def test_an_upstream_that_is_silent_gives_way_to_the_next(
    both: Serve, upstream: FakeUpstream, reserve: FakeUpstream
) -> None:
    upstream.says(HEAD, chunk(ROLE), HANG)
    started = time.monotonic()
    assert both(main="first_token: 300ms").chat(stream=True).content == GOOD
    assert 0.25 < time.monotonic() - started < 3
    assert upstream.last.closed.wait(10)
    assert (len(upstream.requests), len(reserve.requests)) == (1, 1)


def test_all_share_one_deadline(both: Serve, upstream: FakeUpstream, reserve: FakeUpstream) -> None:
    upstream.says(HANG)
    reserve.says(HANG)
    proxy = both("first_token: 300ms, retries: 9", "first_token: 9s, retries: 9", "first_token: 1s")
    started = time.monotonic()
    assert proxy.chat(stream=True).status_code == 504
    assert 0.9 < time.monotonic() - started < 5
    assert (len(upstream.requests), len(reserve.requests)) == (1, 1)
    assert upstream.last.closed.wait(10)
    assert reserve.last.closed.wait(10)


def test_one_that_is_silent_leaves_time_for_the_next_to_answer_whole(
    both: Serve, upstream: FakeUpstream, reserve: FakeUpstream
) -> None:
    upstream.says(HANG)
    got = both("total: 4s", "total: 4s").chat()
    assert got.status_code == 200
    assert got.elapsed.total_seconds() < 3.5
    assert upstream.last.closed.wait(10)
    assert (len(upstream.requests), len(reserve.requests)) == (1, 1)


def test_one_that_is_alone_has_all_the_time_to_answer_whole(serve: Serve, upstream: FakeUpstream) -> None:
    upstream.says(0.9, *answer(completion("Hello there.")))
    proxy = serve("""
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", total: 1500ms}}
pipelines: {default: {upstreams: [main]}}
""")
    assert proxy.chat().json()["choices"][0]["message"]["content"] == "Hello there."


def test_a_last_try_with_hardly_any_time_says_nothing_of_what_was_wrong(
    both: Serve, upstream: FakeUpstream, reserve: FakeUpstream
) -> None:
    upstream.script = in_turn(answer(b"", 503, "retry-after-ms: 1200\r\n"), [HANG])
    reserve.says(HANG)
    got = both("first_token: 1600ms", "first_token: 1600ms, retries: 0", "first_token: 2s").chat(stream=True)
    assert got.status_code == 504
    assert len(upstream.requests) == 2
    assert reserve.url.rpartition("/v1")[0] in got.json()["error"]["message"]


def test_whoever_was_silent_is_asked_again_when_all_have_been(
    both: Serve, upstream: FakeUpstream, reserve: FakeUpstream
) -> None:
    upstream.script = in_turn([HANG])
    reserve.says(HANG)
    proxy = both("first_token: 1s", "first_token: 1s", "first_token: 8s")
    assert proxy.chat(stream=True).content == GOOD
    assert (len(upstream.requests), len(reserve.requests)) == (2, 1)


def test_a_silent_upstream_alone_costs_its_own_time_and_no_more(serve: Serve, upstream: FakeUpstream) -> None:
    upstream.says(HANG)
    proxy = serve("""
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", first_token: 400ms, retries: 5}}
pipelines: {default: {upstreams: [main]}}
""")
    started = time.monotonic()
    assert proxy.chat(stream=True).status_code == 504
    assert time.monotonic() - started < 3
    assert len(upstream.requests) == 1


def test_an_upstream_is_left_alone_as_long_as_it_wants(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    upstream.script = in_turn(answer(b"", 429, "retry-after-ms: 600\r\n"))
    assert proxy.chat(stream=True).content == GOOD
    first, second = upstream.requests
    assert second.at - first.at >= 0.6


def test_meanwhile_the_next_one_is_asked(both: Serve, upstream: FakeUpstream, reserve: FakeUpstream) -> None:
    upstream.says(*answer(b"", 429, "retry-after: 1\r\n"))
    assert both("first_token: 5s").chat(stream=True).content == GOOD
    assert (len(upstream.requests), len(reserve.requests)) == (1, 1)


@pytest.mark.parametrize("stream", [True, False])
def test_a_wait_that_does_not_fit_is_passed_on(
    proxy: ProxyServer, upstream: FakeUpstream, stream: bool
) -> None:
    upstream.says(*answer({"error": {"message": "Busy."}}, 429, "retry-after: 30\r\n"))
    started = time.monotonic()
    got = proxy.chat(stream=stream, session_id="s1")
    assert time.monotonic() - started < 4
    assert got.status_code == 429
    assert got.headers["retry-after"] == "30"
    assert got.headers["x-turnkeeper-session"] == "s1"
    assert len(upstream.requests) == 1


def test_after_the_first_delta_nobody_is_asked_again(
    both: Serve, upstream: FakeUpstream, reserve: FakeUpstream
) -> None:
    upstream.says(HEAD, chunk(ROLE + delta(content="Hel")), 1.5, RESET)
    got = both(pipeline="request: [], hedge: 1s").chat(stream=True)
    assert words(got.content) == "Hel"
    assert b'"upstream_broken"' in got.content.splitlines()[-2]
    assert DONE not in got.content
    assert (len(upstream.requests), len(reserve.requests)) == (1, 0)


SAID_LATE = {
    "as OpenAI says it": b'data: {"error": {"message": "boom", "type": "server_error"}}\n\n',
    "bare": b'data: {"error": "boom"}\n\n',
    "in a chunk": event(error={"message": "boom", "code": 502}, choices=[{"index": 0, "delta": {}}]),
    "with a name": b'event: error\r\ndata: {"error": {"message": "boom"}}\r\n\r\n',
}


@pytest.mark.parametrize("name", SAID_LATE)
@pytest.mark.parametrize("together", [True, False], ids=["in one piece", "in two"])
def test_an_error_in_the_middle_is_told_as_one_and_nothing_behind_it(
    proxy: ProxyServer, upstream: FakeUpstream, name: str, *, together: bool
) -> None:
    said, fault = delta(content='He said "error": '), SAID_LATE[name] + DONE
    pieces = [chunk(said + fault)] if together else [chunk(said), 0.2, chunk(fault)]
    upstream.says(HEAD, chunk(ROLE + delta(content="So: ")), *pieces, END)
    got = proxy.chat(stream=True)
    assert words(got.content) == 'So: He said "error": '
    told = json.loads(got.content.splitlines()[-2].removeprefix(b"data: "))
    assert told["error"].keys() == {"message", "type", "param", "code"}
    assert told["error"]["message"] == "boom"
    assert DONE not in got.content
    assert got.content.count(b"boom") == 1


REASONING = delta(reasoning_content="hm")


def test_reasoning_is_no_content_where_content_is_due(
    both: Serve, upstream: FakeUpstream, reserve: FakeUpstream
) -> None:
    upstream.says(HEAD, chunk(ROLE + REASONING), HANG)
    proxy = both(main="first_token: 1s, first_content: 1500ms")
    started = time.monotonic()
    assert proxy.chat(stream=True).content == GOOD
    assert 1.45 < time.monotonic() - started < 6
    assert upstream.last.closed.wait(10)


def test_reasoning_that_leads_to_content_in_time_is_passed_on_whole(
    both: Serve, upstream: FakeUpstream, reserve: FakeUpstream
) -> None:
    body = ROLE + REASONING + delta(content="Two.") + DONE
    cut = len(ROLE + REASONING)
    upstream.says(HEAD, chunk(body[:cut]), 1.5, chunk(body[cut:]), END)
    assert both(main="first_token: 1s, first_content: 8s").chat(stream=True).content == body
    assert not reserve.requests


def test_reasoning_is_an_answer_where_content_is_not_due(both: Serve, upstream: FakeUpstream) -> None:
    upstream.says(HEAD, chunk(ROLE + REASONING), HANG)
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
    with both().client.stream("POST", "/v1/chat/completions", json=body) as got:
        assert next(got.iter_raw()) == ROLE + REASONING


# The hedge.

HEDGED = "request: [], hedge: 200ms"


def test_a_late_first_delta_starts_the_next_upstream_and_the_loser_is_cancelled(
    both: Serve, upstream: FakeUpstream, reserve: FakeUpstream
) -> None:
    upstream.says(HEAD, chunk(ROLE), HANG)
    proxy = both("first_token: 5s", "first_token: 5s", HEDGED)
    assert proxy.client.get("/healthz").status_code == 200
    tasks = proxy.tasks()
    started = time.monotonic()
    assert proxy.chat(stream=True).content == GOOD
    assert 0.15 < time.monotonic() - started < 4
    assert upstream.last.closed.wait(10)
    assert reserve.last.at - upstream.last.at >= 0.15
    assert until(lambda: proxy.tasks() <= tasks)
    assert proxy.client.get("/readyz").json()["degraded"] == [], "who loses is not ill for it"


def test_the_first_upstream_may_still_win(both: Serve, upstream: FakeUpstream, reserve: FakeUpstream) -> None:
    upstream.says(1.5, *sse(GOOD))
    reserve.says(HEAD, chunk(ROLE), HANG)
    assert both("first_token: 5s", "first_token: 5s", HEDGED).chat(stream=True).content == GOOD
    assert reserve.last.closed.wait(10)


def test_an_error_frame_does_not_win(both: Serve, upstream: FakeUpstream, reserve: FakeUpstream) -> None:
    upstream.says(1.5, *sse(GOOD))
    reserve.says(*sse(ROLE + event(error={"message": "boom"}, choices=[])))
    got = both("first_token: 5s", "first_token: 5s, retries: 0", HEDGED).chat(stream=True)
    assert got.content == GOOD
    assert len(reserve.requests) == 1


def test_in_time_nobody_else_is_asked(both: Serve, reserve: FakeUpstream) -> None:
    assert both(pipeline="request: [], hedge: 5s").chat(stream=True).content == GOOD
    assert not reserve.requests


def test_when_both_fail_it_is_a_status(both: Serve, upstream: FakeUpstream, reserve: FakeUpstream) -> None:
    upstream.says(HANG)
    reserve.says(*BAD_GATEWAY)
    started = time.monotonic()
    got = both("first_token: 600ms", "first_token: 600ms", HEDGED).chat(stream=True)
    assert got.status_code in {502, 504}
    assert time.monotonic() - started < 5


def test_a_hang_up_during_the_race_reaches_both(
    both: Serve, upstream: FakeUpstream, reserve: FakeUpstream
) -> None:
    upstream.says(HANG)
    reserve.says(HANG)
    proxy = both("first_token: 9s", "first_token: 9s", HEDGED)
    with pytest.raises(Exception, match="timed out"):
        proxy.client.post(
            "/v1/chat/completions",
            json={"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]},
            timeout=2,
        )
    assert upstream.last.closed.wait(10)
    assert reserve.last.closed.wait(10)


# Breakers.


@pytest.fixture
def long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A circuit that is open stays so for the whole test."""
    monkeypatch.setattr("proxy.upstream.target._BACKOFF", Backoff(60, 60))


def ready(proxy: ProxyServer) -> tuple[int, list[str]]:
    got = proxy.client.get("/readyz")
    return got.status_code, got.json()["degraded"]


@pytest.mark.usefixtures("long_pause")
def test_an_upstream_that_keeps_failing_is_passed_over(
    both: Serve, upstream: FakeUpstream, reserve: FakeUpstream
) -> None:
    proxy = both()
    upstream.says(*answer(b"", 503))
    for _ in range(3):
        assert proxy.chat(stream=True).content == GOOD
    assert len(upstream.requests) == 5
    assert ready(proxy) == (200, ["upstream main"])
    assert proxy.chat(stream=True).content == GOOD
    assert len(upstream.requests) == 5, "passed over without a try"


def test_an_upstream_that_was_passed_over_is_found_again(
    both: Serve, upstream: FakeUpstream, reserve: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.upstream.target._BACKOFF", Backoff(0.2, 0.2))
    proxy = both()
    upstream.says(*answer(b"", 503))
    for _ in range(3):
        assert proxy.chat(stream=True).content == GOOD
    upstream.script = by_default
    assert until(lambda: proxy.chat(stream=True).content == GOOD and ready(proxy) == (200, []))


@pytest.mark.usefixtures("long_pause")
def test_a_model_that_was_not_named_before_makes_nobody_reachable(serve: Serve) -> None:
    proxy = serve(NOBODY)
    for number in range(5):
        assert proxy.chat(model=f"m{number}").status_code == 502
    assert ready(proxy) == (503, ["upstream main"])
    assert proxy.chat(model="another").status_code == 502
    assert ready(proxy) == (503, ["upstream main"])


@pytest.mark.usefixtures("long_pause")
def test_who_could_not_be_reached_and_answers_is_reached(serve: Serve) -> None:
    later = FakeUpstream()
    later.port = free_port()
    proxy = serve(NOBODY.replace("http://127.0.0.1:1/v1", later.url))
    for number in range(5):
        assert proxy.chat(model=f"m{number}").status_code == 502
    assert ready(proxy) == (503, ["upstream main"])
    with later:
        assert until(lambda: proxy.chat().status_code == 200)
        assert ready(proxy) == (200, [])


def test_an_upstream_that_answers_with_an_error_is_reached(serve: Serve, upstream: FakeUpstream) -> None:
    proxy = serve(NOBODY.replace("http://127.0.0.1:1/v1", upstream.url))
    upstream.says(*answer(b"", 503))
    for number in range(6):
        assert proxy.chat(model=f"m{number}").status_code == 503
    assert ready(proxy) == (200, [])


@pytest.mark.usefixtures("long_pause")
def test_without_any_upstream_the_server_is_not_ready_and_asks_all_the_same(
    both: Serve, upstream: FakeUpstream, reserve: FakeUpstream
) -> None:
    proxy = both()
    for each in (upstream, reserve):
        each.says(RESET)
    for _ in range(3):
        assert proxy.chat(stream=True).status_code == 502
    assert ready(proxy) == (503, ["upstream main", "upstream reserve"])
    reserve.script = by_default
    assert until(lambda: proxy.chat(stream=True).content == GOOD)
    assert ready(proxy) == (200, ["upstream main"])


@pytest.mark.usefixtures("long_pause")
def test_who_makes_summaries_alone_makes_no_server_ready(
    serve: Serve, upstream: FakeUpstream, reserve: FakeUpstream
) -> None:
    config = (CONFIG % (QUICK, QUICK, "request: []")).replace("[main, reserve]", "[main]")
    memory = 'memory: {sessions: "memory:", summaries: {upstream: reserve}}\n'
    proxy = serve(config + memory, RESERVE=reserve.url)
    upstream.says(RESET)
    for _ in range(3):
        assert proxy.chat(stream=True).status_code == 502
    assert ready(proxy) == (503, ["upstream main"])


@pytest.mark.parametrize("status", [400, 401, 404, 429])
def test_what_callers_do_wrong_speaks_against_no_upstream(
    proxy: ProxyServer, upstream: FakeUpstream, status: int
) -> None:
    upstream.says(*answer(b"", status))
    for _ in range(6):
        assert proxy.chat(stream=True).status_code == status
    assert ready(proxy) == (200, [])


def test_a_model_that_fails_speaks_against_no_other(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    upstream.script = lambda request: BAD_GATEWAY if request.json["model"] == "ill" else by_default(request)
    assert proxy.chat().status_code == 200
    for _ in range(3):
        assert proxy.chat(model="ill").status_code == 502
    assert ready(proxy) == (200, ["upstream main"])


@pytest.mark.usefixtures("long_pause")
def test_streams_that_break_again_and_again_count_as_failures(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    upstream.says(HEAD, chunk(ROLE + delta(content="Hel")), RESET)
    for _ in range(5):
        assert proxy.chat(stream=True).status_code == 200
    assert ready(proxy) == (503, ["upstream main"])


def test_a_stream_that_comes_to_its_end_makes_up_for_those_that_broke(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    broken = [HEAD, chunk(ROLE + delta(content="Hel")), RESET]
    upstream.script = in_turn(*[broken] * 4, sse(GOOD), *[broken] * 4)
    for _ in range(9):
        assert proxy.chat(stream=True).status_code == 200
    assert ready(proxy) == (200, [])


# A hedge whose reserve will not answer.


@pytest.mark.parametrize("status", [400, 413, 422])
def test_what_the_reserve_refuses_is_no_verdict_on_an_upstream_that_is_merely_late(
    both: Serve, upstream: FakeUpstream, reserve: FakeUpstream, status: int
) -> None:
    upstream.says(0.8, *sse(GOOD))
    reserve.says(*answer({"error": {"message": "No."}}, status))
    got = both("first_token: 5s", "first_token: 5s", HEDGED).chat(stream=True)
    assert (got.status_code, got.content) == (200, GOOD)
    assert (len(upstream.requests), len(reserve.requests)) == (1, 1)


def test_what_the_first_upstream_refuses_is_told_before_the_reserve_has_answered(
    both: Serve, upstream: FakeUpstream, reserve: FakeUpstream
) -> None:
    upstream.says(0.5, *answer({"error": {"message": "No."}}, 400))
    reserve.says(HANG)
    proxy = both("first_token: 9s", "first_token: 9s", HEDGED)
    got = proxy.chat(stream=True)
    assert (got.status_code, got.json()["error"]["message"]) == (400, "No.")
    assert reserve.last.closed.wait(1)


def test_when_the_first_fails_after_all_its_own_failure_is_told(
    both: Serve, upstream: FakeUpstream, reserve: FakeUpstream
) -> None:
    upstream.says(0.5, *answer({"error": {"message": "Down."}}, 503))
    reserve.says(*answer({"error": {"message": "No."}}, 400))
    got = both("first_token: 5s, retries: 0", "first_token: 5s", HEDGED).chat(stream=True)
    assert (got.status_code, got.json()["error"]["message"]) == (503, "Down.")
