"""An upstream with every fault: what the caller gets, what is left open, and the call after it."""

import asyncio
import gc
import socket
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx2
import pytest
import trustme

from tests.contract_upstream import server_context
from tests.peers.fake_upstream import (
    CLOSE,
    DONE,
    END,
    HANG,
    HEAD,
    RESET,
    ROLE,
    USAGE,
    FakeUpstream,
    Received,
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
from tests.peers.http_peer import black_hole
from tests.peers.relay import Relay
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import stored_entries, texts
from tests.serving_process import ServingProcess
from tests.tried import Tried
from tests.waiting import until

pytestmark = pytest.mark.faults
CONFIG = """
memory: {sessions: "memory:"}
upstreams:
  main: {base_url: "${UPSTREAM_BASE_URL}", %s, retries: %d}
pipelines:
  default: {upstreams: [main], request: []}
  hurried: {upstreams: [main], request: [], first_token: 400ms}
"""
PATIENT = "connect: 8s, first_token: 8s, total: 30s"
"""No limit is reached on a slow machine, and each outlasts a test that waits for it."""
BRIEF = "connect: 8s, first_token: 8s, total: 1500ms"
IMPATIENT = "connect: 300ms, first_token: 400ms, total: 800ms"
HURRIED = "/pipelines/hurried/v1/chat/completions"
"""The same upstream, and its connections; a first delta is not waited for as long."""
GOOD = stream_of("Hello", " there.")
HALF = ROLE + delta(content="half a ")
STATUS = HEAD.split(b"\r\n", 1)[0]
OPEN_END = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


def sized(length: int) -> bytes:
    return OPEN_END.replace(b"\r\n\r\n", b"\r\ncontent-length: %d\r\n\r\n" % length)


def zipped(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(body) + packer.flush()


ZIPPED = HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
LONG = ROLE + delta(content="x" * 1_000_000) + DONE
WRONG_BYTES = ROLE + b'data: {"choices": [{"delta": {"content": "\xff\xfe"}}]}\n\n' + DONE
FILTERED = event(choices=[], prompt_filter_results=[{"prompt_index": 0, "content_filter_results": {}}])
WRONG_JSON = ROLE + b'data: {"choices": [{"delta": {"content": }\n\n' + DONE
MIXED = WRONG_BYTES.removesuffix(DONE) + WRONG_JSON.removesuffix(DONE) + GOOD
DEEP = ROLE + b"data: " + b"[" * 100_000 + b"\n\n" + DONE

OWN = b'event: ping\ndata: {"type": "ping"}\n\nid: 1\nretry: 5\n\n' + event(object="note", choices=None)
LOGIN = b"data: Please log in\n\n"
JOINED = ROLE.removesuffix(b"\n") + delta(content="Hello there.") + DONE
THOUGHTS = ROLE + delta(reasoning_content="hm") + DONE
SECOND = delta(1, content="Hello") + delta(1, finish="stop") + DONE
OLDEST = event(choices=[{"index": 0, "text": "Hello there.", "finish_reason": None}]) + DONE
NOTHING = event(choices=[])
HALF_NAMED = event(**{"\ud83d": 1}, choices=[])
PAGE = b"<html><title>Please log in</title></html>"

# Before the first delta: the caller gets this status.
BEFORE: dict[str, tuple[list[Step], int]] = {
    "reset at once": ([RESET], 502),
    "closed at once": ([CLOSE], 502),
    "stalls before its head": ([HANG], 504),
    "stalls inside its status line": ([STATUS[:9], HANG], 504),
    "stalls inside its headers": ([HEAD[:70], HANG], 504),
    "stalls before the first delta": ([HEAD, HANG], 504),
    "stalls after the role": ([HEAD, chunk(ROLE), HANG], 504),
    "trickles its head": ([step for byte in HEAD for step in (bytes([byte]), 0.05)], 504),
    "sends comments for ever": ([HEAD, *[chunk(b": ping\n\n"), 0.05] * 40, HANG], 504),
    "promises more than it sends": ([sized(len(ROLE) + 99), ROLE, CLOSE], 502),
    "closes before anything": ([OPEN_END, ROLE, CLOSE], 502),
    "ends before anything": ([HEAD, chunk(ROLE), END], 502),
    "ends in [DONE] alone": (sse(ROLE + DONE), 502),
    "bad chunk size": ([HEAD, b"zz\r\n" + ROLE + b"\r\n", HANG], 502),
    "negative chunk size": ([HEAD, b"-5\r\nhello\r\n", HANG], 502),
    "two lengths": (
        [OPEN_END.replace(b"\r\n\r\n", b"\r\ncontent-length: 5\r\ncontent-length: 9\r\n\r\n"), HANG],
        502,
    ),
    "length no number": ([OPEN_END.replace(b"\r\n\r\n", b"\r\ncontent-length: many\r\n\r\n"), HANG], 502),
    "headers without end": ([HEAD[:-2], *[b"x-more: " + b"y" * 8000 + b"\r\n"] * 20, HANG], 502),
    "another protocol": ([b"SSH-2.0-OpenSSH_9.6\r\n\r\n", HANG], 502),
    "only interim answers": ([b"HTTP/1.1 102 Processing\r\n\r\n" * 3, HANG], 504),
    "switches protocols": ([b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\n\r\n", HANG], 502),
    "gzip that is none": ([ZIPPED, chunk(GOOD), END], 502),
    "gzip cut short": ([ZIPPED, chunk(zipped(GOOD)[:12]), END], 502),
    "an unknown coding": ([ZIPPED.replace(b"gzip", b"br"), chunk(GOOD), END], 502),
    "an error frame": (sse(event(error={"message": "boom"}, choices=[])), 502),
    "a role and a frame of 429": (sse(ROLE + event(error={"message": "boom", "code": 429}, choices=[])), 429),
    "an error frame, and stays": ([HEAD, chunk(ROLE + event(error={"message": "boom"})), HANG], 502),
    "[DONE] alone, and stays": ([HEAD, chunk(ROLE + DONE), HANG], 502),
    "an error of 2 MB, and stays": (
        [STATUS.replace(b"200", b"500") + b"\r\n\r\n", b"x" * 2_000_000, HANG],
        502,
    ),
    "a redirection that stays": ([STATUS.replace(b"200", b"302") + b"\r\n\r\n", HANG], 502),
    "words in place of events": (sse(LOGIN), 502),
    "words, and [DONE]": (sse(LOGIN + DONE), 502),
    "data that is no JSON": (sse(WRONG_JSON), 502),
    "JSON that is too deep": (sse(DEEP), 502),
    "empty choices alone": (sse(NOTHING + DONE), 502),
    "half a character for choices": (sse(event(choices="\ud83d") + DONE), 502),
    "usage alone": (sse(USAGE + DONE), 502),
    "a page of HTML for an answer": (answer(PAGE, kind="text/html"), 502),
    "a page of HTML for a stream": (answer(PAGE, kind="text/event-stream"), 502),
    "nothing, of no type": ([OPEN_END.replace(b"content-type: text/event-stream\r\n", b""), CLOSE], 502),
    "a body of nothing": (answer(b""), 502),
    "no content": ([b"HTTP/1.1 204 No Content\r\n\r\n"], 502),
    "JSON that is no completion": (answer({"detail": "ok"}), 502),
    "JSON that is no object": (answer([]), 502),
    "a completion without choices": (answer({**completion(), "choices": []}), 502),
    "an error that is no stream": (answer({"error": {"message": "boom"}}), 502),
    "a page of HTML": (answer(b"<html>Bad gateway</html>", 502, kind="text/html"), 502),
    "an error of 2 MB": (answer(b"x" * 2_000_000, 500), 502),
    "an error cut short": ([answer(b"x" * 999, 500)[0][:-99], CLOSE], 502),
    "an error that stalls": ([answer(b"x" * 999, 500)[0][:-99], HANG], 504),
    "a redirection": (answer(b"", 302, "location: http://127.0.0.1:1/v1\r\n"), 502),
    "a redirection to itself": (answer(b"", 308, "location: /v1/chat/completions\r\n"), 502),
    "429": (answer(b"", 429, "retry-after: 9\r\n"), 429),
    "500": (answer(b"", 500), 500),
    "503": (answer(b"", 503, "retry-after: 9\r\n"), 503),
    "529": (answer(b"", 529), 529),
    "a status beyond all classes": (answer(b"", 600), 502),
    "the last status there could be": (answer(b"", 999), 502),
}

CLOSELY = GOOD.replace(b"data: ", b"data:")

LAST_WORDS = event(error={"message": "overloaded"}).removesuffix(b"\n\n")

# After the first delta: the caller gets these bytes, and an error event.
AFTER: dict[str, list[Step]] = {
    "reset mid-stream": [HEAD, chunk(HALF), 0.03, RESET],
    "closed mid-stream": [HEAD, chunk(HALF), 0.03, CLOSE],
    "stalls mid-stream": [HEAD, chunk(HALF), HANG],
    "stalls inside an event": [HEAD, chunk(HALF + b'data: {"cho'), HANG],
    "bad chunking mid-stream": [HEAD, chunk(HALF), 0.03, b"zz\r\n", HANG],
    "a chunk shorter than it says": [HEAD, b"%x\r\n" % (len(HALF) + 50) + HALF, 0.03, CLOSE],
    "a length longer than the stream": [sized(len(HALF) + 50), HALF, 0.03, CLOSE],
    "gzip cut short mid-stream": [ZIPPED, chunk(zipped(HALF)[:-4]), 0.03, END],
    "an error mid-stream without a blank line": [HEAD, chunk(HALF), 0.03, chunk(LAST_WORDS), END],
    "an error in one go without a blank line": [HEAD, chunk(HALF + LAST_WORDS), END],
}

NAMED = GOOD.replace(DONE, b"data: [DONE]\nevent: end\n\n")
ALONE = GOOD.replace(b"\n", b"\r")

# Streams that have said that they are over, and what the caller gets of them.
OVER: dict[str, tuple[bytes, bytes]] = {
    "[DONE]": (GOOD, GOOD),
    "a comment behind [DONE]": (GOOD + b": bye\n\n", GOOD + b": bye\n\n"),
    "usage behind [DONE]": (GOOD + USAGE, GOOD + USAGE),
    "an error behind [DONE]": (GOOD + b'data: {"error": {"message": "x"}}\n\n', GOOD),
    "half an event behind [DONE]": (GOOD + b"data: {", GOOD),
    "[DONE] with a name": (NAMED, NAMED),
    "[DONE] in CR": (ALONE, ALONE),
    "[DONE] without a blank line": (GOOD[:-1], GOOD[:-1]),
}

# Odd, and no fault: the caller gets what was sent.
ODD: dict[str, tuple[list[Step], bytes]] = {
    "trickles its stream": ([HEAD, *[chunk(bytes([byte])) for byte in GOOD], END], GOOD),
    "gzip that nobody asked for": ([ZIPPED, chunk(zipped(GOOD)), END], GOOD),
    "a line of a megabyte": ([HEAD, chunk(LONG[:400_000]), 0.02, chunk(LONG[400_000:]), END], LONG),
    "bytes that are no UTF-8": (sse(WRONG_BYTES), WRONG_BYTES),
    "events that are none among good ones": (sse(MIXED), MIXED),
    "empty choices first, as Azure has it": (sse(FILTERED + GOOD), FILTERED + GOOD),
    "usage first": (sse(USAGE + GOOD), USAGE + GOOD),
    "a field named by half a character first": (sse(HALF_NAMED + GOOD), HALF_NAMED + GOOD),
    "a vendor's own events first": (sse(OWN + GOOD), OWN + GOOD),
    "words before the first event": (sse(LOGIN + GOOD), LOGIN + GOOD),
    "a line break where a blank line is due": (sse(JOINED), JOINED),
    "thoughts alone": (sse(THOUGHTS), THOUGHTS),
    "a choice of the second alone": (sse(SECOND), SECOND),
    "a legacy completion": (sse(OLDEST), OLDEST),
    "ends with the connection": ([OPEN_END, GOOD, CLOSE], GOOD),
    "resets behind [DONE]": ([HEAD, chunk(GOOD), 0.1, RESET], GOOD),
    "resets behind [DONE] without a space": ([HEAD, chunk(CLOSELY), 0.1, RESET], CLOSELY),
    **{f"{name}, resets": ([HEAD, chunk(sent), 0.1, RESET], got) for name, (sent, got) in OVER.items()},
    "bytes behind the end": ([sized(len(GOOD)), GOOD + b"HTTP/1.1 200 OK\r\n\r\n"], GOOD),
    "chunk extensions": ([HEAD, b"%x;a=b\r\n%b\r\n" % (len(GOOD), GOOD), END], GOOD),
    "interim answers first": ([b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", *sse(GOOD)], GOOD),
}

# Of these no caller hears a word: it is as if nothing had been said.
UNREADABLE = {
    "thoughts alone",
    "a choice of the second alone",
    "a legacy completion",
    "a line break where a blank line is due",
}


class Greeting(FakeUpstream):
    """Follows its script as soon as any bytes come."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            said = await reader.read(65536)
            await self._play(Received("", "", {}, said), reader, writer)
        except ConnectionError:
            pass
        finally:
            self.open -= 1
            writer.close()


@pytest.fixture(scope="module", autouse=True)
def _left_by_others() -> None:
    """What earlier tests left is nothing that the collector, called after each fault, has to look through."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def upstream() -> Iterator[FakeUpstream]:
    """One upstream for all faults, so that each fault meets the leftovers of the ones before."""
    with FakeUpstream() as fake:
        yield fake


@contextmanager
def limited(limits: str, upstream: FakeUpstream, folder: Path) -> Iterator[ProxyServer]:
    path = folder / "config.yaml"
    path.write_text(CONFIG % (limits, 0))
    with ProxyServer(path, {"UPSTREAM_BASE_URL": upstream.url}) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyServer]:
    with limited(PATIENT, upstream, tmp_path_factory.mktemp("faults")) as server:
        yield server


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ProxyServer, FakeUpstream]]:
    """Has little time for a whole answer, from an upstream of its own: whose connections wait is counted."""
    with FakeUpstream() as fake, limited(BRIEF, fake, tmp_path_factory.mktemp("brief")) as server:
        yield server, fake


def open_files() -> int:
    files = Path("/proc/self/fd")
    return len(list(files.iterdir())) if files.exists() else 0


@contextmanager
def harmless(proxy: ProxyServer, upstream: FakeUpstream, idle: int = 2) -> Iterator[None]:
    """What happens inside leaves no connection, task or file behind, and the next call is served.

    So many connections may wait for the next call: the last one, and one that was opened early meanwhile.
    """
    upstream.script = by_default
    assert proxy.chat(stream=True).content == GOOD
    assert until(lambda: upstream.open <= idle)
    tasks, files = proxy.tasks(), open_files() - 2 * upstream.open
    yield
    assert until(lambda: upstream.open <= idle), f"{upstream.open} connections are open"
    assert until(lambda: proxy.tasks() <= tasks), f"{proxy.tasks()} tasks, there were {tasks}"
    gc.collect()
    left = until(lambda: open_files() - 2 * upstream.open <= files + 1)
    assert left, f"{open_files()} files, there were {files}, without connections"
    upstream.script = by_default
    assert proxy.chat(stream=True).content == GOOD
    assert proxy.chat().json() == completion()
    assert until(lambda: upstream.open <= idle), "one that was left open was not the one for the next call"


def of(session: str) -> dict[str, str]:
    """The headers of a call that is remembered."""
    return {"X-Session-Id": session}


def assert_error(got: httpx2.Response, status: int) -> None:
    assert got.status_code == status, got.text
    assert got.json()["error"].keys() >= {"message", "type", "param", "code"}
    assert got.headers["x-request-id"]


def assert_broken(got: httpx2.Response, said: bytes) -> None:
    assert got.status_code == 200
    assert got.content.startswith(said)
    assert b'"upstream_' in got.content[len(said) :]
    assert got.content.endswith(b"\n\n")
    assert DONE not in got.content


@pytest.mark.parametrize("name", BEFORE)
def test_a_fault_before_the_first_delta_is_a_status(
    proxy: ProxyServer, upstream: FakeUpstream, tried: Tried, name: str
) -> None:
    steps, status = BEFORE[name]
    with harmless(proxy, upstream):
        upstream.says(*steps)
        path = HURRIED if status == 504 else "/v1/chat/completions"
        started = time.monotonic()
        assert_error(proxy.chat(stream=True, headers=of(name), path=path), status)
        assert time.monotonic() - started < 5
    assert texts(stored_entries(proxy, name)) == []
    tried(name, f"{status}")


@pytest.mark.parametrize("name", AFTER)
def test_a_fault_after_the_first_delta_is_an_event(
    proxy: ProxyServer,
    upstream: FakeUpstream,
    brief: tuple[ProxyServer, FakeUpstream],
    tried: Tried,
    name: str,
) -> None:
    proxy, upstream = brief if HANG in AFTER[name] else (proxy, upstream)
    with harmless(proxy, upstream):
        upstream.says(*AFTER[name])
        assert_broken(proxy.chat(stream=True, headers=of(name)), HALF)
    assert texts(stored_entries(proxy, name)) == [("user", "Hi"), ("assistant", "half a ")]
    tried(name, "what was said, then an error event")


@pytest.mark.parametrize("last", [END, CLOSE, RESET])
@pytest.mark.parametrize("blank", [b"", b"\n\n"])
def test_an_error_is_told_in_the_model_s_own_words_however_its_stream_ends(
    proxy: ProxyServer, upstream: FakeUpstream, blank: bytes, last: Step
) -> None:
    with harmless(proxy, upstream):
        upstream.says(HEAD, chunk(HALF + LAST_WORDS + blank), 0.03, last)
        got = proxy.chat(stream=True)
        assert_broken(got, HALF)
        assert b"overloaded" in got.content


@pytest.mark.parametrize("name", [name for name in OVER if name != "[DONE] without a blank line"])
@pytest.mark.parametrize("pings", [0, 100])
def test_a_stream_that_has_ended_is_not_waited_for(
    proxy: ProxyServer, upstream: FakeUpstream, tried: Tried, name: str, pings: int
) -> None:
    sent, body = OVER[name]
    with harmless(proxy, upstream):
        upstream.says(HEAD, chunk(sent), *[0.3, chunk(b": ping\n\n")] * pings, HANG)
        began = time.monotonic()
        got = proxy.chat(stream=True, headers=of(f"{name} {pings}"))
        assert time.monotonic() - began < 6
    assert got.content.startswith(body)
    assert b'"upstream_' not in got.content
    assert texts(stored_entries(proxy, f"{name} {pings}")) == [("user", "Hi"), ("assistant", "Hello there.")]
    tried(f"{name}, stays", "what was said")


@pytest.mark.parametrize("name", ODD)
def test_what_is_merely_odd_arrives_as_it_was_sent(
    proxy: ProxyServer,
    upstream: FakeUpstream,
    brief: tuple[ProxyServer, FakeUpstream],
    tried: Tried,
    name: str,
) -> None:
    steps, body = ODD[name]
    proxy, upstream = brief if HANG in steps else (proxy, upstream)
    with harmless(proxy, upstream):
        upstream.says(*steps)
        got = proxy.chat(stream=True, headers=of(name))
        assert got.status_code == 200
        assert got.content == body
    asked = [] if name in UNREADABLE else [("user", "Hi")]
    assert texts(stored_entries(proxy, name))[:1] == asked
    tried(name, "the answer as it was sent")


@pytest.mark.parametrize("last", [RESET, CLOSE])
def test_an_end_at_any_byte_is_a_status_or_an_event(
    proxy: ProxyServer, upstream: FakeUpstream, tried: Tried, last: str
) -> None:
    sent = HEAD + chunk(ROLE) + chunk(delta(content="Hi")) + chunk(DONE) + END
    whole = ROLE + delta(content="Hi") + DONE
    with harmless(proxy, upstream):
        for cut in range(len(sent)):
            upstream.says(sent[:cut], last)
            got = proxy.chat(stream=True, model=f"m{cut}")  # each has a circuit of its own
            if got.status_code == 200 and b"[DONE]" not in got.content:
                assert_broken(got, ROLE + delta(content="Hi"))
            elif got.status_code == 200:
                assert got.content in {whole, whole[:-1], whole[:-2]}
            else:
                assert_error(got, 502)
    tried(f"{last} at each of {len(sent)} bytes", "502, or what was said and an error event")


@pytest.mark.parametrize("last", [RESET, CLOSE])
def test_a_whole_answer_that_ends_at_any_byte_is_a_status(
    proxy: ProxyServer, upstream: FakeUpstream, tried: Tried, last: str
) -> None:
    sent = answer(completion())[0]
    with harmless(proxy, upstream):
        for cut in range(0, len(sent), 3):
            upstream.says(sent[:cut], last)
            assert_error(proxy.chat(model=f"m{cut}"), 502)
    tried(f"{last} at every third byte, no stream", "502")


@pytest.mark.parametrize(
    ("name", "steps", "status"),
    [
        ("stalls before its head", [HANG], 504),
        ("stalls inside its body", [answer(completion())[0][:-9], HANG], 504),
        ("no JSON", answer(PAGE, kind="text/html"), 502),
        ("nothing", answer(b""), 502),
        ("no content", [b"HTTP/1.1 204 No Content\r\n\r\n"], 502),
        ("no completion", answer({"detail": "Please log in"}), 502),
        ("no object", answer(["Please log in"]), 502),
        ("no choices", answer({**completion(), "choices": []}), 502),
        ("choices that are none", answer({**completion(), "choices": [None, {}]}), 502),
        ("too deep", answer(b"[" * 100_000), 502),
        ("a length shorter than the body", [answer(completion())[0] + b"more"], 200),
    ],
)
def test_a_whole_answer_may_be_bad_too(
    brief: tuple[ProxyServer, FakeUpstream], tried: Tried, name: str, steps: list[Step], status: int
) -> None:
    proxy, upstream = brief
    with harmless(proxy, upstream):
        upstream.says(*steps)
        got = proxy.chat(headers=of(f"{name}, no stream"))
        assert got.status_code == status
        assert b"log in" not in got.content
    assert texts(stored_entries(proxy, f"{name}, no stream"))[1:] == (
        [("assistant", "Hello there.")] if status == 200 else []
    )
    tried(f"{name}, no stream", f"{status}")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("steps", "came"),
    [
        (answer(PAGE, kind="text/html; charset=utf-8"), "41 bytes of text/html"),
        (answer(b"", kind="application/json"), "an empty body"),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], "an empty body under the status 204"),
        (answer({"detail": "ok"}), "JSON without choices"),
        (answer(b"oh", kind="secret: ann@example.org"), "2 bytes of no known type"),
    ],
)
def test_another_upstream_answers_for_one_whose_answer_is_none(
    serve: Serve, upstream: FakeUpstream, steps: list[Step], came: str, stream: bool
) -> None:
    upstream.says(*steps)
    got = serve(CONFIG % (PATIENT, 0)).chat(stream=stream)
    assert_error(got, 502)
    assert came in got.json()["error"]["message"]
    assert got.json()["error"]["code"] == "upstream_broken"
    assert "log in" not in got.text
    assert "ann@" not in got.text
    with FakeUpstream() as other:
        both = CONFIG.replace("upstreams: [main]", "upstreams: [main, other]")
        both = both.replace("upstreams:\n", f"upstreams:\n  other: {{base_url: {other.url}}}\n", 1)
        got = serve(both % (PATIENT, 0)).chat(stream=stream)
        assert got.status_code == 200
        assert len(other.requests) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_storm_is_weathered(serve: Serve, upstream: FakeUpstream, tried: Tried, status: int) -> None:
    proxy = serve(CONFIG % (PATIENT, 1))
    with harmless(proxy, upstream, idle=16 + 1):
        upstream.requests.clear()
        upstream.says(*answer({"error": {"message": "Busy."}}, status))
        call = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
        with ThreadPoolExecutor(16) as callers, httpx2.Client(timeout=30) as client:
            url = f"{proxy.url}/chat/completions"
            got = list(callers.map(lambda _: client.post(url, json=call).status_code, range(64)))
        assert set(got) <= {status, 503}
        # Until five have failed each tries again, and then one call a second.
        assert len(upstream.requests) <= (2 * 64 if status == 429 else 64 + 10)
    tried(f"a storm of {status}", f"{status}")


def test_a_connection_that_closes_when_it_is_used_again_costs_nothing(
    proxy: ProxyServer, upstream: FakeUpstream, tried: Tried
) -> None:
    with harmless(proxy, upstream):
        closing = iter([[CLOSE], [RESET]] * 5)
        reused = False

        def script(request: object) -> list[Step]:
            nonlocal reused
            reused = not reused
            return next(closing) if reused else sse(GOOD)

        upstream.script = script
        for _ in range(10):
            assert proxy.chat(stream=True).content == GOOD
    tried("closed on reuse", "the answer, from a new connection")


def test_an_upstream_that_refuses_connections_is_502(serve: Serve, tried: Tried) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # nobody listens
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
        proxy = serve(CONFIG % (PATIENT, 1), UPSTREAM_BASE_URL=url)
        tasks = proxy.tasks()
        assert_error(proxy.chat(stream=True), 502)
        assert until(lambda: proxy.tasks() <= tasks + 1)
    tried("refuses connections", "502")


def test_an_upstream_that_takes_no_connection_is_504(serve: Serve, tried: Tried) -> None:
    with black_hole() as listener, socket.create_connection(listener.getsockname()):
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        proxy = serve(CONFIG % (IMPATIENT, 0), UPSTREAM_BASE_URL=url)
        started = time.monotonic()
        assert_error(proxy.chat(stream=True), 504)
        assert time.monotonic() - started < 5
    tried("takes no connection", "504")


@pytest.mark.parametrize(
    ("name", "steps", "status"),
    [
        ("TLS that never shakes hands", [HANG], 504),
        ("TLS that is none", [b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n", CLOSE], 502),
        ("TLS that is reset", [RESET], 502),
    ],
)
def test_an_upstream_that_is_slow_or_wrong_at_tls_is_a_status(
    serve: Serve, tried: Tried, name: str, steps: list[Step], status: int
) -> None:
    with Greeting() as greeting:
        greeting.says(*steps)
        proxy = serve(CONFIG % (IMPATIENT, 0), UPSTREAM_BASE_URL=greeting.url.replace("http:", "https:"))
        started = time.monotonic()
        assert_error(proxy.chat(stream=True), status)
        assert time.monotonic() - started < 5
        assert until(lambda: greeting.open == 0)
    tried(name, f"{status}")


@pytest.fixture
def secure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeUpstream]:
    """An upstream over TLS that the server trusts."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with FakeUpstream(server_context(authority, "127.0.0.1")) as fake:
        yield fake


@pytest.mark.parametrize(("delay", "limits", "status"), [(0.05, PATIENT, 200), (0.5, IMPATIENT, 504)])
def test_an_upstream_may_shake_hands_slowly(
    serve: Serve, secure: FakeUpstream, tried: Tried, delay: float, limits: str, status: int
) -> None:
    with Relay(secure.port) as way:
        way.delay = delay
        proxy = serve(CONFIG % (limits, 0), UPSTREAM_BASE_URL=f"https://127.0.0.1:{way.port}/v1")
        started = time.monotonic()
        got = proxy.chat(stream=True)
        assert got.status_code == status
        assert time.monotonic() - started < 5
    tried(f"TLS, {delay * 1000:.0f} ms late", f"{status}")


ALL = {name: steps for name, (steps, _) in [*BEFORE.items(), *ODD.items()]} | AFTER


def test_all_of_it_again_and_again_leaves_the_server_as_it_was(
    upstream: FakeUpstream, tmp_path: Path, tried: Tried
) -> None:
    upstream.script = lambda asked: ALL[asked.json["messages"][-1]["content"]]
    config = CONFIG % (IMPATIENT, 0) + 'listen: {port: "${PORT}"}\nlog: {level: error}\ntraces: {keep: 1}\n'
    with (
        ServingProcess(tmp_path, config, UPSTREAM_BASE_URL=upstream.url) as serving,
        ThreadPoolExecutor(16) as callers,
    ):
        once = partial(through_all, serving, callers)
        for _ in range(8):
            once()  # what is opened once and kept is no leak
        files, megabytes = serving.open_files(), serving.megabytes()
        for _ in range(5):
            once()
        assert until(lambda: serving.open_files() <= files + 2), f"{serving.open_files()}, there were {files}"
        grown = serving.megabytes() - megabytes
        assert grown < 15, f"{grown:.1f} MB"  # each round brings 6 MB
        upstream.script = by_default
        assert until(lambda: serving.chat(stream=True).content == GOOD)
    tried(f"all {len(ALL)} of these, again and again", "no file and no memory is left")


def through_all(serving: ServingProcess, callers: ThreadPoolExecutor) -> None:
    """Makes a call with each fault, many at once, without memory, whose data would look like a leak."""

    def one(name: str) -> None:
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": name}]}
        assert serving.client.post("/v1/chat/completions", json=body).status_code

    list(callers.map(one, ALL))
