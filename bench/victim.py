"""Measures how long one caller's stream waits while others send or get the largest accepted messages.

python -m bench.victim [--only NAME] [--times 3] [--busy]

A server in a separate process remembers as much as one tenant can have. It answers a stream with pieces every
20 ms, and short calls one after another, and meanwhile each attack of the table is made several times. The
table has the largest extra delay of a piece of the stream, and of the first byte of a call. It also has the
longest time from an answer until another program finds the first turn of its session in the file. Each value
is from the quietest run, since the machine is shared, and in brackets from the worst. ``--busy`` keeps both
cores busy with other work.
"""

import argparse
import asyncio
import contextlib
import gzip
import hashlib
import hmac
import http.client
import itertools
import json
import multiprocessing
import re
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from bench.serving import Running, free_port, running
from filters.base import AnswerFilter, Example, RequestFilter, Spoken
from proxy.settings.filter_registry import FilterRegistry

CONFIG = """
listen: {host: 127.0.0.1, port: "${PORT}"}
keys: "a:secret,a:chat-only:chat"
memory:
  sessions: "${MEMORY_URL}"
  deadline: 50ms
  redact: {kinds: [card, iban, email]}
  window: {max_messages: 60, keep_messages: 20, ttl: 24h}
  summaries: {upstream: theirs, model: "", max: 10}
  archive: {keep: forever}
  facts: {upstream: theirs, model: ""}
traces: {keep: 50, content: true}
webhooks: {agora: {secret: "${AGORA_WEBHOOK_SECRET}"}}
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
  spoken: {upstreams: [theirs], request: [], answer: [speakable, hide_reasoning, redact]}
"""
MEMORY = "memory.db"
_REGISTRY = FilterRegistry(installed=False)
_REQUEST_FILTERS = {name: _REGISTRY.get(name, RequestFilter) for name in _REGISTRY.names(RequestFilter)}
_ANSWER_FILTERS = {name: _REGISTRY.get(name, AnswerFilter) for name in _REGISTRY.names(AnswerFilter)}
_OPTIONS: Mapping[str, Any] = {"rewrite": {"replace": [{"pattern": "(a+)+b", "with": "c"}]}}
"""The options of filters whose first example takes little work."""

_CHAT, _MEMORY = "/v1/chat/completions", "/v1/memory"
_JSON, _FORM = "application/json", "application/x-www-form-urlencoded"
_WEBHOOK_SECRET = "of the webhook"
_PAUSE = 0.02
_CALM = 1.0
_ALONE = 20
_AFTER = 1.0
_TRIES = 30
_STORED_WITHIN = 240.0
_STAMP = re.compile(rb"@(\d{16})")
_TOKEN = re.compile(rb'name="token" value="([0-9a-f]+)"')
_PAUSE_OF_CALLS = 0.03
_LOOK_EVERY = 0.002
_STORED = "SELECT 1 FROM turnkeeper_sessions WHERE tenant = CAST('a' AS BLOB) AND session = ?"
_sessions = itertools.count()


class Request(NamedTuple):
    """A request; a form contains the token of its page."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = {}
    key: str = "secret"


class Attack(NamedTuple):
    """Requests that are sent one after another; they are built when the attack begins."""

    name: str
    requests: Callable[[], Sequence[Request]]
    at_once: int = 1
    """The number of callers that send all requests at the same time."""
    stored: bool = False
    """Whether the attack is on stored data."""


class Result(NamedTuple):
    """The milliseconds by which a stream and a call were delayed, with statuses and seconds.

    ``durable`` is the longest time in milliseconds until a turn was durable.
    """

    stream: float
    call: float
    durable: float
    statuses: Sequence[str]
    seconds: float


# --- what is sent


def chat(messages: Any, **fields: Any) -> bytes:
    """Returns the body of a chat request."""
    return _json({"model": "paced-1-0", "stream": True, "messages": messages, **fields})


def user(content: Any, **fields: Any) -> dict[str, Any]:
    """Returns a message of the user."""
    return {"role": "user", "content": content, **fields}


def turn(
    *messages: Any, pipeline: str = "default", session: str | None = None, fields: Mapping[str, Any] = {}
) -> Request:
    """Returns a turn with a key for chat only."""
    return _turn(chat(messages, **fields), pipeline, session)


def _turn(body: bytes, pipeline: str = "default", session: str | None = None, **headers: str) -> Request:
    if session == _NEW:
        session = _new_session()
    if session:
        headers |= {"x-session-id": session, "x-user-id": "attacker"}
    return Request("POST", f"/pipelines/{pipeline}{_CHAT}", body, headers, key="chat-only")


def _post(path: str, value: Any) -> Request:
    return Request("POST", path, _json(value))


def _put(path: str, value: Any) -> Request:
    return Request("PUT", path, _json(value))


def _patch(path: str, value: Any) -> Request:
    return Request("PATCH", path, _json(value))


def _form(path: str, **fields: str) -> Request:
    return Request("POST", path, urlencode(fields).encode(), {"content-type": _FORM})


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _only(request: Callable[[], Request], times: int = 1) -> Callable[[], Sequence[Request]]:
    return lambda: [request()] * times


def _new_session() -> str:
    """Returns a session that no attack has used, so that attacks do not affect each other."""
    return f"attacker-{next(_sessions)}"


def _lines(count: int, words: str = "") -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[i % 2], "content": f"Line {i} {words}"} for i in range(count)]


def _tool_calls(count: int) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    return {"role": "assistant", "tool_calls": [{"id": f"c{i}", **call} for i in range(count)]}


def _numbered(count: int) -> dict[str, int]:
    return {f"k{i}": 1 for i in range(count)}


def _filtered(step: str, messages: Callable[[], Sequence[Any]]) -> Request:
    return turn(*messages(), pipeline=f"request-{step}")


def _three(message: Any) -> Sequence[Request]:
    """Returns three turns of a session, with a message that is repeated."""
    session = _new_session()
    return [turn(message, user(f"Hi {i}"), session=session) for i in range(3)]


def _and_page(shown: Callable[[], Request]) -> Sequence[Request]:
    """Returns a turn and the request of its page."""
    return [shown(), Request("GET", f"/turns/{_LAST_TURN}")]


def _and_remove(method: str, path: str) -> Sequence[Request]:
    """Returns a session of 15 MB, whose user has its name, and the removal of both."""
    name = _new_session()
    contents = _lines(10_000, "word " * 280)
    stored = _put(f"{_MEMORY}/sessions/{name}", {"user": name, "contents": contents})
    removal = path.format(name)
    deleted = [Request("DELETE", f"{_MEMORY}/sessions/{name}")] * ("archive" in path)
    return [stored, *deleted, _form(removal) if method == "POST" else Request(method, removal)]


def _asking(model: str, pipeline: str = "default", session: str | None = None) -> Request:
    """Returns a turn for a model whose name selects the answer."""
    return _turn(chat([user("Hi")]).replace(b"paced-1-0", model.encode()), pipeline, session)


def _signed(event: Any) -> Request:
    """Returns a signed event of Agora."""
    body = _json(event)
    signature = hmac.digest(_WEBHOOK_SECRET.encode(), body, hashlib.sha256).hex()
    return Request("POST", "/webhooks/agora", body, {"agora-signature-v2": signature})


def _draft(path: str, yaml: str, request: bytes = b"") -> Request:
    return _form(path, pipeline="default", request=request.decode(), yaml=yaml)


_NEW = "(a new one)"
"""Placeholder for a session that no attack has used."""
_PART = {"type": "text", "text": ""}
_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 15_000_000}}
_LAST_TURN = "{turn}"
"""Placeholder for the turn of the request before."""
_LAST_FACT = "{fact}"
"""Placeholder for the fact of the request before."""
_ENDLESS = ("/v1/turns", "/live/events")
"""Paths whose answers are read for one second only."""
_MUCH = "4111 1111 a.b@c.example **_`[x](y) <think> +49 170 aaaaaaaaaaaaaaaaaaaaaa "
"""Text with all kinds of data that filters look for."""
_LONG, _USER, _AGENT = f"{_MEMORY}/sessions/long", f"{_MEMORY}/users/attacker", f"{_MEMORY}/agents/busy"
_TEXTS: Mapping[str, str] = {
    "digits": "4111 " * 190_000,
    "letters": "aaaaaaaaaa" * 95_000,
    "addresses": "a.b@c." * 160_000,
    "marks": "**_`[](" * 140_000,
}


def attacks() -> Iterator[Attack]:
    """Returns all attacks."""
    yield Attack("nothing", list)
    yield from _turns()
    yield from _answers()
    yield from _filters()
    for attack in itertools.chain(_memory(), _pages()):
        yield attack._replace(stored=True)


def _turns() -> Iterator[Attack]:
    """Returns the largest turns that are accepted, and larger ones."""
    once: Mapping[str, Callable[[], Request]] = {
        "one message of 500,000 text parts": lambda: turn(user([_PART] * 500_000)),
        "one assistant message with 150,000 tool calls": lambda: turn(_tool_calls(150_000), user("Hi")),
        "700,000 metadata keys": lambda: turn(user("Hi", metadata=_numbered(700_000))),
        "5,000,000 numbers in metadata": lambda: turn(user("Hi", metadata={"k": [0] * 5_000_000})),
        "80,000 fields at the top": lambda: turn(user("Hi"), session=_NEW, fields=_numbered(80_000)),
        "1,000,000 fields at the top": lambda: turn(user("Hi"), fields=_numbered(10**6)),
        "3,500,000 empty arrays in a field": lambda: turn(user("Hi"), fields={"tools": [[]] * 3_500_000}),
        "numbers of 4,000 digits": lambda: turn(user("Hi", metadata={"k": [int("9" * 4000)] * 3500})),
        "a 15 MB body with an unpaired surrogate": lambda: turn(user("\ud800" + "x" * 15_000_000)),
        "a wrong turn_id beside 15 MB": lambda: turn(user("x" * 15_000_000, turn_id="x")),
        "10,000 messages in a session": lambda: turn(*_lines(10_000), session=_NEW),
        "10,000 messages of 1,400 characters": lambda: turn(*_lines(10_000, "word " * 280)),
        "an image of 15 MB": lambda: turn(user([_IMAGE]), session=_NEW),
        "16 MB, gzipped": lambda: _turn(
            gzip.compress(chat([user("x" * 15_500_000)])), **{"content-encoding": "gzip"}
        ),
        "a text of 5,000,000 ideographs": lambda: _turn(
            chat([user("?" * 15_000_000)]).replace(b"???", "\u4e2d".encode())
        ),
    }
    for name, request in once.items():
        yield Attack(name, _only(request))
    accepted: Mapping[str, dict[str, Any]] = {
        "35,000 text parts": user([_PART] * 35_000),
        "10,000 tool calls": _tool_calls(10_000),
        "80,000 metadata keys": user("Hi", metadata=_numbered(80_000)),
        "160,000 numbers in metadata": user("Hi", metadata={"k": [0] * 160_000}),
        "490,000 escapes": user("\\" * 490_000),
        "a text of 240,000 letters": user("word " * 48_000),
        "a text of 240,000 digits": user("4111 " * 48_000),
        "a text of 80,000 ideographs": user("\u4e2d1 " * 27_000),
    }
    for name, message in accepted.items():
        yield Attack(f"{name}, in a session", partial(_three, message))
    for name, words in _TEXTS.items():
        yield Attack(f"1 MB of {name} in a session", _only(partial(turn, user(words), session=_NEW)))

    def long_texts() -> Sequence[Request]:
        words, session = " ".join(f"word{i % 5000}" for i in range(1_400_000)), _new_session()
        return [turn(user(f"{i} {words}"), session=session) for i in range(4)]

    yield Attack("four texts of 15 MB in a session", long_texts)
    yield Attack("eight at once: an image of 15 MB", lambda: [turn(user([_IMAGE]), session=_NEW)], at_once=8)
    yield Attack("eight at once: a text of 15 MB", lambda: [turn(user("word " * 3_000_000))], at_once=8)
    yield Attack(
        "eight at once: 10,000 messages of 1,400 characters",
        lambda: [turn(*_lines(10_000, "word " * 280))],
        at_once=8,
    )
    explained: Mapping[str, Sequence[Any]] = {
        "35,000 parts": [user([_PART] * 35_000)],
        "15 MB": [user("word " * 3_000_000)],
        "10,000 messages": _lines(10_000),
        "240,000 digits": [user("4111 " * 48_000)],
    }
    for name, messages in explained.items():
        yield Attack(
            f"explain, {name}",
            _only(partial(Request, "POST", "/v1/explain", chat(messages))),
        )


def _answers() -> Iterator[Attack]:
    """Returns turns with the largest answers of a model, with and without answer filters."""
    models = {"one delta of 10 MB": "delta-10", "100,000 deltas at once": "paced-100000-0"}
    for name, model in models.items():
        yield Attack(f"the model sends {name}", _only(partial(_asking, model, session=_NEW)))
        yield Attack(
            f"the model sends {name}, through three filters",
            _only(partial(_asking, model, "spoken", session=_NEW)),
        )
        for step in _ANSWER_FILTERS:
            yield Attack(
                f"the answer filter {step}, {name}",
                _only(partial(_asking, model, f"answer-{step}")),
            )


def _filters() -> Iterator[Attack]:
    """Returns the largest inputs of request filters."""
    for step in _REQUEST_FILTERS:
        large: Mapping[str, Callable[[], Sequence[Any]]] = {
            "15 MB in one message": lambda: [user(_MUCH * (15_000_000 // len(_MUCH)))],
            "15 MB in 10,000 messages": lambda: _lines(10_000, _MUCH * 18),
        }
        for name, messages in large.items():
            yield Attack(
                f"the filter {step}, {name}",
                _only(partial(_filtered, step, messages)),
            )
    for name, words in _TEXTS.items():
        yield Attack(f"redact, 1 MB of {name}", _only(partial(turn, user(words), pipeline="request-redact")))
    yield Attack(
        "eight at once: redact, 1 MB of digits",
        _only(partial(turn, user(_TEXTS["digits"]), pipeline="request-redact")),
        at_once=8,
    )


def _memory() -> Iterator[Attack]:
    """Returns each path of the memory API with the largest accepted request, or the largest answer."""
    text = "word " * 190_000
    sent: Mapping[str, Callable[[], Request]] = {
        "PUT of a session of 100,000 turns": lambda: _put(_LONG, {"contents": _lines(100_000)}),
        "PUT of a session of 10,000 turns": lambda: _put(_LONG + "er", {"contents": _lines(10_000)}),
        "PUT of a session of 15 MB": lambda: _put(_LONG + "er", {"contents": _lines(10_000, "word " * 280)}),
        "PUT of a session of 15 MB in one text": lambda: _put(
            _LONG + "er", {"contents": [user("word " * 3_000_000)]}
        ),
        "PUT of a session of 15 MB in 30 texts": lambda: _put(
            _LONG + "er", {"contents": [user("word " * 99_000)] * 30}
        ),
        "PUT of a session of 100,000 parts": lambda: _put(
            _LONG + "er", {"contents": [user([_PART] * 100_000)]}
        ),
        "PUT of a session of 250,000 names": lambda: _put(
            _LONG + "er", {"contents": [user("Hi", metadata=_numbered(250_000))]}
        ),
        "POST of a session of 15 MB": lambda: _post(
            f"{_MEMORY}/sessions", {"id": _new_session(), "contents": _lines(10_000, "word " * 280)}
        ),
        "PUT of a state of 80,000 names": lambda: _put(f"{_LONG}/state", _numbered(80_000)),
        "PATCH of a state of 8,000 bytes": lambda: _patch(f"{_LONG}/state", {"k": "x" * 7_900}),
        "a summary of 20,000 messages": lambda: _post(
            f"{_MEMORY}/sessions/own/summaries", {"messages": [user("Hi")] * 20_000}
        ),
        "a summary of 1 MB": lambda: _post(f"{_MEMORY}/sessions/own/summaries", {"messages": [user(text)]}),
        "a summary of the longest session": lambda: _post(f"{_LONG}/summaries", {}),
        "a search for 1 MB": lambda: _post(f"{_MEMORY}/search", {"user": "attacker", "query": text}),
        "a search for 2,000 characters": lambda: _post(
            f"{_MEMORY}/search",
            {"user": "attacker", "query": " ".join(f"{i}line" for i in range(300))[:2000], "limit": 100},
        ),
        "a search for what every turn says": lambda: _post(
            f"{_MEMORY}/search", {"user": "attacker", "query": "word line", "limit": 100}
        ),
        "a profile of 4,000 characters": lambda: _put(f"{_USER}/profile", {"text": "x" * 4000}),
        "a fact of 1 MB": lambda: _post(f"{_USER}/facts", {"text": text}),
        "a fact of 2,000 characters": lambda: _post(f"{_USER}/facts", {"text": "x" * 2000}),
        "an episode of 1 MB": lambda: _post(
            f"{_AGENT}/episodes", {"interaction_type": "t", "content": "x" * 950_000}
        ),
        "an episode of 4,000 characters": lambda: _post(
            f"{_AGENT}/episodes", {"interaction_type": "t", "content": "x" * 4000}
        ),
        "Agora's history of 1 MB": lambda: _signed(
            {
                "noticeId": _new_session(),
                "eventType": 103,
                "notifyMs": time.time() * 1000,
                "payload": {"channel": "history", "agent_id": "a", "contents": _lines(10_000, "word " * 10)},
            }
        ),
    }
    for name, request in sent.items():
        yield Attack(name, _only(request))
    fact = _post(f"{_USER}/facts", {"text": "x" * 2000})
    changed = _patch(f"{_USER}/facts/{_LAST_FACT}", {"text": "y" * 2000})
    yield Attack(
        "a fact that is changed and removed",
        lambda: [fact, changed, Request("DELETE", changed.path)],
    )
    for path in (
        f"{_MEMORY}/users?limit=100",
        f"{_MEMORY}/sessions?limit=100",
        f"{_MEMORY}/sessions?archived=true&limit=100",
        _LONG,
        f"{_LONG}/state",
        f"{_LONG}/summaries",
        f"{_LONG}/context",
        f"{_LONG}/turns?limit=100",
        f"{_USER}/export",
        f"{_USER}/facts",
        f"{_USER}/profile",
        f"{_USER}/system_messages",
        f"{_AGENT}/episodes?limit=1000",
        "/metrics",
        "/v1/models",
        "/v1/models/paced-1-0",
        "/healthz",
        "/readyz",
    ):
        yield Attack(f"GET {path}", _only(partial(Request, "GET", path), times=3))
    yield Attack("eight at once: GET /v1/turns", _only(partial(Request, "GET", "/v1/turns")), at_once=8)
    for path in (f"{_LONG}/summaries", f"{_USER}/profile"):
        yield Attack(f"DELETE {path}", _only(partial(Request, "DELETE", path)))
    yield Attack("DELETE of a session of 15 MB", lambda: _and_remove("DELETE", f"{_MEMORY}/sessions/{{}}"))
    yield Attack("DELETE of a user with 15 MB", lambda: _and_remove("DELETE", f"{_MEMORY}/users/{{}}"))


def _pages() -> Iterator[Attack]:
    """Returns each page with the most content."""
    for path in (
        "/",
        "/live",
        "/conversations",
        "/conversations/long",
        "/conversations/long?before=5000",
        "/conversations/long/delete",
        "/conversations/long/edit/9999",
        "/conversations/long/replay",
        "/conversations/long/archive/delete",
        "/conversations/archive/all",
        "/users",
        "/users/attacker?query=word",
        "/users/attacker/export",
        "/users/attacker/forget",
        "/agents?id=busy",
        "/agents/busy",
        "/health",
        "/playground",
        "/login",
        "/assets/page.js",
    ):
        yield Attack(f"GET {path}", _only(partial(Request, "GET", path), times=2))
    followed = _only(partial(Request, "GET", "/live/events"))
    yield Attack("eight at once: GET /live/events", followed, at_once=8)
    shown: Mapping[str, Callable[[], Request]] = {
        "10,000 messages": lambda: turn(*_lines(10_000)),
        "240,000 letters": lambda: turn(user("word " * 48_000), session=_NEW),
        "240,000 digits": lambda: turn(user("4111 " * 48_000), pipeline="request-redact"),
        "15 MB": lambda: turn(user("word " * 3_000_000)),
        "an answer of 10 MB": lambda: _asking("delta-10"),
    }
    for name, shown_turn in shown.items():
        yield Attack(
            f"GET /turns of {name}",
            partial(_and_page, shown_turn),
        )
    yield Attack(
        "POST /conversations/long/edit/9999, 200,000 characters",
        lambda: [_form("/conversations/long/edit/9999", shown="x", text="word " * 40_000)],
    )
    grows = "request:\n  - rewrite: " + json.dumps({"replace": [{"pattern": "a", "with": "a" * 1000}] * 4})
    yield Attack(
        "POST /login, with a key of 500,000 characters", lambda: [_form("/login", key="x" * 500_000)]
    )
    yield Attack("POST /logout", lambda: [_form("/logout")])
    for path in ("/conversations/{}/delete", "/conversations/{}/archive/delete", "/users/{}/forget"):
        yield Attack(f"POST {path.format('of-15-MB')}", partial(_and_remove, "POST", path))
    yield Attack(
        "POST /users/attacker/facts",
        lambda: [_post(f"{_USER}/facts", {"text": "x" * 2000}), _form(f"/users/attacker/facts/{_LAST_FACT}")],
    )
    drafts = {
        "a playground draft that grows a thousandfold": (grows, chat([user("a")])),
        "a playground draft of 250,000 characters": ("request: [redact]", chat([user("4111 " * 50_000)])),
        "a playground draft of 5,000 messages": ("request: [repair_history]", chat(_lines(5000))),
    }
    for name, (yaml, sent) in drafts.items():
        yield Attack(name, _only(partial(_draft, "/playground", yaml, sent)))
    for name, yaml in {"grow a thousandfold": grows, "change nothing": "request: [repair_history]"}.items():
        replay = partial(_draft, "/conversations/long/replay", yaml)
        yield Attack(f"a replay of 10,000 turns with filters that {name}", _only(replay), stored=True)
        again = [turn(*_lines(2_000, "a" * 1000)), _draft(f"/turns/{_LAST_TURN}/run", yaml)]
        yield Attack(f"a turn of 2,000 messages run again with filters that {name}", partial(list, again))


# --- what is stored before


def store(port: int) -> None:
    """Stores the most data that one user can have, and waits until it is archived."""
    send = [
        _put(
            _LONG, {"user": "attacker", "contents": _lines(10_000, "word " * 280), "state": {"k": "x" * 7900}}
        ),
        *[_put(f"{_MEMORY}/sessions/s{i}", {"contents": _lines(2)}) for i in range(100)],
        *[_post(f"{_USER}/facts", {"text": f"{i} " + "x" * 1990}) for i in range(100)],
        *[
            _post(f"{_AGENT}/episodes", {"interaction_type": "t", "content": f"{i} " + "x" * 3990})
            for i in range(1000)
        ],
    ]
    for request in send:
        for _ in range(_TRIES):
            if (answer := _ask(port, request)).status != http.client.SERVICE_UNAVAILABLE:
                break
            time.sleep(1)  # memory has 50 ms, and the one before is still being archived
        if answer.status >= http.client.BAD_REQUEST:
            sys.exit(f"{request.method} {request.path}: {answer.status}")
    end = time.monotonic() + _STORED_WITHIN
    while not json.loads(_ask(port, Request("GET", f"{_LONG}/turns?after=9999")).body)["data"]:
        if time.monotonic() > end:
            sys.exit("The longest session is not archived.")
        time.sleep(1)


class Answer(NamedTuple):
    """The parts of an answer that are checked."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


def _ask(port: int, request: Request) -> Answer:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"authorization": f"Bearer {request.key}", "content-type": _JSON, **request.headers}
    body = request.body
    with contextlib.closing(client):
        if headers["content-type"] == _FORM:
            token = _TOKEN.search(_ask(port, Request("GET", "/playground", key=request.key)).body)
            body += b"&token=" + (token[1] if token else b"")
        client.request(request.method, request.path, body, headers)
        answer = client.getresponse()
        if request.path in _ENDLESS:
            end = time.monotonic() + 1
            while time.monotonic() < end and answer.read1():
                pass
            return Answer(answer.status, answer.headers, b"")
        return Answer(answer.status, answer.headers, answer.read())


def _attack(port: int, requests: Sequence[Request]) -> list[str]:
    """Sends the requests; returns the status of each, and its missing parts."""
    statuses, turn, fact = [], "", ""
    for request in requests:
        path = request.path.replace(_LAST_TURN, turn).replace(_LAST_FACT, fact)
        try:
            answer = _ask(port, request._replace(path=path))
        except OSError as error:
            statuses.append(type(error).__name__)
            continue
        turn = answer.headers["x-request-id"].replace("req_", "turn_")
        if answer.status == http.client.CREATED and path.endswith("/facts"):
            fact = json.loads(answer.body)["id"]
        degraded = answer.headers.get("x-turnkeeper-degraded")
        statuses.append(f"{answer.status}{' without ' + degraded if degraded else ''}")
    return statuses


# --- what is measured


class Stream:
    """A stream with a piece every 20 ms; ``delays`` are those of each piece, in milliseconds."""

    def __init__(self, port: int) -> None:
        self.delays: list[float] = []
        self._port = port

    async def run(self) -> None:
        """Reads until it is cancelled."""
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
        """Sends requests until it is cancelled."""
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


class Durability:
    """First turns of sessions, one after another.

    ``delays`` are the milliseconds from the end of each answer until its turn is in the file.
    """

    def __init__(self, port: int, file: Path) -> None:
        self.delays: list[float] = []
        self._port = port
        self._file = file

    async def run(self) -> None:
        """Sends requests until it is cancelled."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        file = sqlite3.connect(f"file:{self._file}?mode=ro", uri=True)
        with contextlib.closing(writer), contextlib.closing(file):
            while True:
                session = f"durable-{next(_sessions)}"
                writer.write(_request(self._port, "paced-1-0", session))
                data = b""
                while not data.endswith(b"0\r\n\r\n"):
                    data += await reader.read(65536)
                ended = time.monotonic()
                while file.execute(_STORED, (session.encode(),)).fetchone() is None:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(_LOOK_EVERY)
                self.delays.append((time.monotonic() - ended) * 1000)
                await asyncio.sleep(_PAUSE_OF_CALLS)


def _request(port: int, model: str, session: str | None = None) -> bytes:
    body = chat([user("Hi")]).replace(b"paced-1-0", model.encode())
    head = (
        f"POST /pipelines/victim/v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
        f"authorization: Bearer chat-only\r\ncontent-length: {len(body)}\r\n"
        f"x-session-id: {session or model}\r\n\r\n"
    )
    return head.encode() + body


async def _measure(port: int, file: Path, attack: Attack) -> Result:
    stream, calls, durability = Stream(port), Calls(port), Durability(port, file)
    tasks = [asyncio.create_task(each.run()) for each in (stream, calls, durability)]
    requests = [await asyncio.to_thread(attack.requests) for _ in range(attack.at_once)]
    await asyncio.sleep(_CALM)
    while min(len(stream.delays), len(calls.firsts)) < _ALONE:  # noqa: ASYNC110 - nothing says when
        await asyncio.sleep(_PAUSE)
    before, before_calls, before_turns = len(stream.delays), len(calls.firsts), len(durability.delays)
    began = time.monotonic()
    senders = [asyncio.to_thread(_attack, port, each) for each in requests]
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
        max(durability.delays[before_turns:]),
        list(dict.fromkeys(statuses)),
        seconds,
    )


def _pipelines() -> str:
    """Returns a pipeline for each filter, with the options of its first example."""
    lines = []
    examples: dict[tuple[str, str], Sequence[Example | Spoken]] = {}
    examples |= {("request", name): step.examples for name, step in _REQUEST_FILTERS.items()}
    examples |= {("answer", name): step.spoken for name, step in _ANSWER_FILTERS.items()}
    for (side, name), shown in examples.items():
        options = _OPTIONS.get(name, shown[0].options)
        pipeline = {"upstreams": ["theirs"], "request": [], side: [{name: options}]}
        lines.append(f"  {side}-{name}: {json.dumps(pipeline)}\n")
    return "".join(lines)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[int, Running]]:
    """Yields a server and its port, with one model for the stream and another for all other requests.

    Its memory is ``MEMORY`` in the folder.
    """
    with contextlib.ExitStack() as stack:
        path, port = folder / "victim.yaml", free_port()
        path.write_text(CONFIG + _pipelines())
        environ = {
            "PORT": str(port),
            "MEMORY_URL": f"sqlite:{folder / MEMORY}",
            "AGORA_WEBHOOK_SECRET": _WEBHOOK_SECRET,
        }
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
    sys.stdout.write("| what one caller sends | answered | the stream waits, ms | a first byte waits, ms |")
    sys.stdout.write(" a turn is durable after, ms |\n|---|---|---|---|---|\n")
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as (port, _):
        stored = False
        for attack in attacks():
            if asked.only not in attack.name:
                continue
            if attack.stored and not stored:
                store(port)
                stored = True
            results = [asyncio.run(_measure(port, Path(folder) / MEMORY, attack)) for _ in range(asked.times)]
            statuses = ", ".join(dict.fromkeys(status for result in results for status in result.statuses))
            answered = f"{statuses} in {min(each.seconds for each in results):.2f} s" if statuses else ""
            waits = " | ".join(
                f"{min(each):.0f} ({max(each):.0f})"
                for each in zip(*((one.stream, one.call, one.durable) for one in results), strict=True)
            )
            sys.stdout.write(f"| {attack.name} | {answered} | {waits} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
