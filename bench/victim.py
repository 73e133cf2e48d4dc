"""How long one caller's stream waits while others send, or are sent, the largest that is accepted.

python -m bench.victim [--only NAME] [--times 3] [--busy]

A server in a process of its own answers a stream whose pieces come every 20 ms, and a short call over and
over. Beside them each attack of the table is made. Of the stream the largest extra delay of a piece is
printed, of the calls that of the first byte: the median of all times, and the worst. ``--busy`` keeps both
cores busy with something else.
"""

import argparse
import asyncio
import contextlib
import gzip
import http.client
import itertools
import json
import multiprocessing
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from bench.serving import Running, free_port, running

CONFIG = """
listen: {host: 127.0.0.1, port: "${PORT}"}
keys: "a:secret,a:chat-only:chat"
memory:
  sessions: "${MEMORY_URL}"
  deadline: 50ms
  redact: {kinds: [card, iban, email]}
  window: {max_messages: 60, keep_messages: 20, ttl: 30m}
  summaries: {upstream: theirs, model: "", max: 10}
  archive: {keep: forever}
  facts: {upstream: theirs, model: ""}
traces: {keep: 50, content: true}
upstreams:
  paced: {base_url: "${PACED}", first_token: 30s, total: 300s}
  theirs: {base_url: "${THEIRS}", first_token: 30s, total: 300s}
pipelines:
  default:
    upstreams: [theirs]
    request:
      - repair_history
      - restore_history
      - inject_summaries
      - drop_messages: {sources: [silence, llm_failure]}
      - restore_interrupted: {show: both}
      - inject_facts
  victim: {upstreams: [paced], request: [repair_history, restore_history, inject_summaries, inject_facts]}
  redacted: {upstreams: [theirs], request: [redact]}
  spoken: {upstreams: [theirs], request: [], answer: [speakable, hide_reasoning, redact]}
"""
_FILTERS: Mapping[str, Any] = {
    "rewrite": {"replace": [{"pattern": "(a+)+b", "with": "c"}]},
    "timestamp_prefix": {"format": "%H:%M", "timezone": "UTC"},
    "user_context": {"template": "{user}: "},
    "merge_consecutive": {},
    "recall": {"limit": 5},
    "trim_history": {"max_tokens": 8000},
    "repair_history": {},
}
_PAUSE = 0.02
_CALM = 1.0
_ALONE = 20
_AFTER = 1.0
_STAMP = re.compile(rb"@(\d{16})")
_TOKEN = re.compile(rb'name="token" value="([0-9a-f]+)"')
_PAUSE_OF_CALLS = 0.03


class Attack(NamedTuple):
    """One or more requests, one after another: method, path and body; all on one connection."""

    name: str
    requests: Callable[[], Sequence[tuple[str, str, bytes]]]
    headers: Mapping[str, str] = {}
    key: str = "chat-only"
    before: Callable[[], Sequence[tuple[str, str, bytes]]] = list
    """What is sent before anything is measured."""
    at_once: int = 1
    """How many callers send all of it beside each other."""


class Result(NamedTuple):
    """Milliseconds that the stream and a call waited beyond what they do alone; statuses, and seconds."""

    stream: float
    call: float
    statuses: Sequence[str]
    seconds: float


def chat(messages: Any, **fields: Any) -> bytes:
    """A chat request's body."""
    whole = {"model": "paced-1-0", "stream": True, "messages": messages, **fields}
    return json.dumps(whole, separators=(",", ":")).encode()


def user(content: Any, **fields: Any) -> dict[str, Any]:
    """A message of the user."""
    return {"role": "user", "content": content, **fields}


def _posts(path: str, *bodies: bytes) -> Callable[[], Sequence[tuple[str, str, bytes]]]:
    return lambda: [("POST", path, body) for body in bodies]


def _long_session(turns: int) -> bytes:
    lines = [
        {"role": role, "content": f"Line {i} of the talk"}
        for i in range(turns)
        for role in ("user", "assistant")
    ]
    return json.dumps({"contents": lines}).encode()


def _calls(count: int) -> list[dict[str, Any]]:
    return [
        {"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for i in range(count)
    ]


def _session_texts() -> Sequence[tuple[str, str, bytes]]:
    words = " ".join(f"word{i % 5000}" for i in range(1_400_000))
    return [("POST", "/v1/chat/completions", chat([user(f"{i} {words}")])) for i in range(4)]


def _thousandfold() -> Sequence[tuple[str, str, bytes]]:
    replace = [{"pattern": "a", "with": "a" * 1000}] * 4
    yaml = "request:\n  - rewrite: " + json.dumps({"replace": replace})
    fields = {"pipeline": "default", "request": chat([user("a")]).decode(), "yaml": yaml}
    return [("POST", "/playground", urlencode(fields).encode())]


_CHAT = "/v1/chat/completions"
_FORMS = {"content-type": "application/x-www-form-urlencoded"}
_SESSION = {"x-session-id": "attacker", "x-user-id": "attacker"}


def attacks() -> Iterator[Attack]:
    """Each attack, made when its turn comes."""
    yield Attack("nothing", list)
    text = {"type": "text", "text": ""}
    yield Attack("one message of 500,000 text parts", _posts(_CHAT, chat([user([text] * 500_000)])), _SESSION)
    yield Attack(
        "one assistant message with 150,000 tool calls",
        _posts(_CHAT, chat([{"role": "assistant", "tool_calls": _calls(150_000)}, user("Hi")])),
        _SESSION,
    )
    yield Attack(
        "'4111 ' 200,000 times through redact",
        _posts("/pipelines/redacted" + _CHAT, chat([user("4111 " * 200_000)])),
    )
    yield Attack(
        "700,000 metadata keys",
        _posts(_CHAT, chat([user("Hi", metadata={f"k{i}": 1 for i in range(700_000)})])),
        _SESSION,
    )
    yield Attack(
        "a 15 MB body with an unpaired surrogate", _posts(_CHAT, chat([user("\ud800" + "x" * 15_000_000)]))
    )
    large = chat([user("Hi")]).replace(b"paced-1-0", b"delta-10")
    yield Attack("the model sends one delta of 10 MB", _posts(_CHAT, large), _SESSION)
    yield Attack("the same through answer filters", _posts("/pipelines/spoken" + _CHAT, large), _SESSION)
    session = "/v1/memory/sessions/long"

    def longest() -> list[tuple[str, str, bytes]]:
        return [("PUT", session, _long_session(5_000))]

    yield Attack(
        "PUT of a session of 100,000 turns", lambda: [("PUT", session, _long_session(100_000))], key="secret"
    )
    yield Attack("PUT of a session of 5,000 turns", longest, key="secret")
    yield Attack("GET of it", lambda: [("GET", session, b"")], key="secret", before=longest)
    yield Attack("four texts of 15 MB in a session", _session_texts, _SESSION)
    yield Attack("a playground draft that grows a thousandfold", _thousandfold, _FORMS, key="secret")


def more() -> Iterator[Attack]:
    """The largest that each path, page and filter accepts."""
    part = {"type": "text", "text": ""}
    accepted: Mapping[str, dict[str, Any]] = {
        "35,000 text parts": user([part] * 35_000),
        "10,000 tool calls": {"role": "assistant", "tool_calls": _calls(10_000)},
        "80,000 metadata keys": user("Hi", metadata={f"k{i}": 1 for i in range(80_000)}),
        "160,000 numbers in metadata": user("Hi", metadata={"k": [0] * 160_000}),
        "490,000 escapes": user("\\" * 490_000),
        "a text of 240,000 letters": user("word " * 48_000),
        "a text of 240,000 digits": user("4111 " * 48_000),
        "a text of 80,000 ideographs": user("\u4e2d1 " * 27_000),
    }
    for name, message in accepted.items():
        yield Attack(
            f"{name}, in a session",
            _posts(_CHAT, *[chat([message, user(f"Hi {i}")]) for i in range(3)]),
            _SESSION,
        )
    fields = {f"k{i}": 1 for i in range(80_000)}
    yield Attack("80,000 fields at the top", _posts(_CHAT, chat([user("Hi")], **fields)), _SESSION)
    yield Attack(
        "1,000,000 fields at the top", _posts(_CHAT, chat([user("Hi")], **{f"k{i}": 1 for i in range(10**6)}))
    )
    yield Attack(
        "5,000,000 empty arrays in a field", _posts(_CHAT, chat([user("Hi")], tools=[[]] * 3_500_000))
    )
    yield Attack(
        "5,000,000 numbers in metadata",
        _posts(_CHAT, chat([user("Hi", metadata={"k": [0] * 5_000_000})])),
        _SESSION,
    )
    digits = int("9" * 4000)
    yield Attack(
        "numbers of 4,000 digits", _posts(_CHAT, chat([user("Hi", metadata={"k": [digits] * 3500})]))
    )
    yield Attack("10,000 messages", _posts(_CHAT, chat([user(f"Line {i}") for i in range(10_000)])), _SESSION)
    yield Attack("a wrong turn_id beside 15 MB", _posts(_CHAT, chat([user("x" * 15_000_000, turn_id="x")])))
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 15_000_000}}
    yield Attack("an image of 15 MB", _posts(_CHAT, chat([user([image])])), _SESSION)
    yield Attack(
        "16 MB, gzipped",
        lambda: [("POST", _CHAT, gzip.compress(chat([user("x" * 15_500_000)])))],
        {"content-encoding": "gzip"},
    )
    path = "/pipelines/redacted" + _CHAT
    yield Attack(
        "eight at once: 1 MB of digits through redact",
        _posts(path, chat([user("4111 " * 190_000)])),
        at_once=8,
    )
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 15_000_000}}
    yield Attack(
        "eight at once: an image of 15 MB", _posts(_CHAT, chat([user([image])])), _SESSION, at_once=8
    )
    texts = {
        "digits": "4111 " * 190_000,
        "letters": "aaaaaaaaaa" * 95_000,
        "addresses": "a.b@c." * 160_000,
        "marks": "**_`[](" * 140_000,
    }
    for name, words in texts.items():
        yield Attack(
            f"1 MB of {name} through redact", _posts("/pipelines/redacted" + _CHAT, chat([user(words)]))
        )
        yield Attack(f"1 MB of {name} in a session", _posts(_CHAT, chat([user(words)])), _SESSION)
    for name in _FILTERS:
        yield Attack(
            f"{name}, 10,000 messages", _posts(f"/pipelines/{name}{_CHAT}", chat([user("a" * 90)] * 9_000))
        )
        yield Attack(f"{name}, 1 MB", _posts(f"/pipelines/{name}{_CHAT}", chat([user("a" * 950_000)])))
    text = {"type": "text", "text": ""}
    explained = {
        "500,000 parts": [user([text] * 500_000)],
        "1 MB": [user("word " * 190_000)],
        "10,000 messages": [user(f"Line {i}") for i in range(10_000)],
    }
    for name, messages in explained.items():
        yield Attack(f"explain, {name}", _posts("/v1/explain", chat(messages)), _SESSION, key="secret")
    search = json.dumps({"user": "attacker", "query": "word " * 3_000_000}).encode()
    yield Attack("a search for 15 MB", _posts("/v1/memory/search", search), key="secret")
    fact = json.dumps({"text": "word " * 3_000_000, "category": "core"}).encode()
    yield Attack("a fact of 15 MB", _posts("/v1/memory/users/u/facts", fact), key="secret")
    episode = {"interaction_type": "t", "content": "x" * 15_000_000, "platform": "p"}
    yield Attack(
        "an episode of 15 MB",
        _posts("/v1/memory/agents/a/episodes", json.dumps(episode).encode()),
        key="secret",
    )
    state = json.dumps({f"k{i}": 1 for i in range(10**6)}).encode()
    path = "/v1/memory/sessions/long/state"
    yield Attack("a state of 1,000,000 names", lambda: [("PUT", path, state)], key="secret")
    lines = json.dumps({"messages": [{"role": "user", "content": "Hi"}] * 300_000}).encode()
    yield Attack(
        "a summary of 300,000 messages", _posts("/v1/memory/sessions/long/summaries", lines), key="secret"
    )
    contents = json.dumps(
        {"contents": [{"role": "user", "content": [text] * 500_000} for text in [{"type": "text"}]]}
    )
    yield Attack(
        "PUT of 500,000 parts", lambda: [("PUT", "/v1/memory/sessions/p", contents.encode())], key="secret"
    )
    for page in (
        "/",
        "/conversations",
        "/conversations/long",
        "/people",
        "/health",
        "/metrics",
        "/v1/models",
    ):
        yield Attack(f"GET {page}", lambda page=page: [("GET", page, b"")] * 5, key="secret")


class Stream:
    """A stream whose pieces come every 20 ms; ``delays`` are each piece's, in milliseconds."""

    def __init__(self, port: int) -> None:
        self.delays: list[float] = []
        self._port = port

    async def run(self) -> None:
        """Reads to the end, which is far away."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(_request(self._port, "paced-9000-20"))
        with contextlib.closing(writer):
            while data := await reader.read(65536):
                now = time.monotonic_ns() // 1000
                self.delays += [(now - int(stamp)) / 1000 for stamp in _STAMP.findall(data)]


class Calls:
    """Short calls, one after another; ``firsts`` are the milliseconds until the first byte of each."""

    def __init__(self, port: int) -> None:
        self.firsts: list[float] = []
        self._port = port

    async def run(self) -> None:
        """Asks until it is cancelled."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        with contextlib.closing(writer):
            while True:
                began = time.monotonic()
                writer.write(_request(self._port, "paced-1-0"))
                data = await reader.read(65536)
                self.firsts.append((time.monotonic() - began) * 1000)
                while not data.endswith(b"0\r\n\r\n"):
                    data += await reader.read(65536)
                await asyncio.sleep(_PAUSE_OF_CALLS)


def _request(port: int, model: str) -> bytes:
    body = chat([user("Hi")]).replace(b"paced-1-0", model.encode())
    head = (
        f"POST /pipelines/victim/v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
        f"authorization: Bearer chat-only\r\ncontent-length: {len(body)}\r\nx-session-id: {model}\r\n\r\n"
    )
    return head.encode() + body


def _attack(port: int, attack: Attack, requests: Sequence[tuple[str, str, bytes]]) -> list[str]:
    """Makes the requests; the status of each, and what its answer went without."""
    statuses = []
    for method, path, body in requests:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        headers = {
            "authorization": f"Bearer {attack.key}",
            "content-type": "application/json",
            **attack.headers,
        }
        try:
            if attack.headers is _FORMS:
                client.request("GET", path, headers=headers)
                token = _TOKEN.search(client.getresponse().read())
                body = body + b"&token=" + (token[1] if token else b"")  # noqa: PLW2901 - the form's own
            client.request(method, path, body, headers)
            answer = client.getresponse()
            answer.read()
            degraded = answer.headers.get("x-turnkeeper-degraded")
            statuses.append(f"{answer.status}{' without ' + degraded if degraded else ''}")
        except OSError as error:
            statuses.append(type(error).__name__)
        finally:
            client.close()
    return statuses


async def _measure(port: int, attack: Attack) -> Result:
    requests = attack.requests()
    await asyncio.to_thread(_attack, port, attack, attack.before())
    stream, calls = Stream(port), Calls(port)
    tasks = [asyncio.create_task(stream.run()), asyncio.create_task(calls.run())]
    await asyncio.sleep(_CALM)
    while len(stream.delays) < _ALONE or len(calls.firsts) < _ALONE:  # noqa: ASYNC110 - nothing says when
        await asyncio.sleep(_PAUSE)
    before, before_calls = len(stream.delays), len(calls.firsts)
    began = time.monotonic()
    senders = [asyncio.to_thread(_attack, port, attack, requests) for _ in range(attack.at_once)]
    statuses = [status for each in await asyncio.gather(*senders) for status in each]
    seconds = time.monotonic() - began
    await asyncio.sleep(_AFTER)
    for task in tasks:
        if task.done():
            task.result()
        task.cancel()
    return Result(
        max(stream.delays[before:]) - statistics.median(stream.delays[:before]),
        max(calls.firsts[before_calls:]) - statistics.median(calls.firsts[:before_calls]),
        list(dict.fromkeys(statuses)),
        seconds,
    )


@contextlib.contextmanager
def served() -> Iterator[tuple[int, Running]]:
    """A server and its port, with a model of its own for the stream, and another for all else."""
    steps = ""
    for name, options in _FILTERS.items():
        steps += f"  {name}:\n    upstreams: [theirs]\n    request: [{json.dumps({name: options})}]\n"
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path, port = folder / "victim.yaml", free_port()
        path.write_text(CONFIG + steps)
        environ = {"PORT": str(port), "MEMORY_URL": f"sqlite:{folder / 'memory.db'}"}
        for name in ("PACED", "THEIRS"):
            at = free_port()
            command = [sys.executable, "-m", "bench.model", str(at)]
            root = f"http://127.0.0.1:{at}"
            stack.enter_context(running(command, root, None, environ={}, log=folder / f"{name}.log"))
            environ[name] = f"{root}/v1"
        command = [sys.executable, "-m", "proxy", "serve", str(path)]
        url = f"http://127.0.0.1:{port}/healthz"
        yield port, stack.enter_context(running(command, url, None, environ=environ, log=folder / "log"))


def _spin() -> None:
    while True:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="attacks whose names have this in them")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--busy", action="store_true")
    asked = parser.parse_args()
    busy = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(2 * asked.busy)]
    for process in busy:
        process.start()
    sys.stdout.write("| what one caller sends | answered | the stream waits, ms | a first byte waits, ms |\n")
    sys.stdout.write("|---|---|---|---|\n")
    for attack in itertools.chain(attacks(), more()):
        if asked.only not in attack.name:
            continue
        with served() as (port, _):
            results = [asyncio.run(_measure(port, attack)) for _ in range(asked.times)]
        statuses = ", ".join(dict.fromkeys(status for result in results for status in result.statuses))
        stream, call = (sorted(getattr(result, name) for result in results) for name in ("stream", "call"))
        middle = asked.times // 2
        seconds = statistics.median(result.seconds for result in results)
        answered = f"{statuses} in {seconds:.2f} s" if statuses else ""
        waits = " | ".join(f"{each[middle]:.0f} ({each[-1]:.0f})" for each in (stream, call))
        sys.stdout.write(f"| {attack.name} | {answered} | {waits} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
