"""Whatever comes in: an answer or an error in OpenAI's shape, never a failure of ours, never silence."""

import json
import re
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import httpx2
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.errors import ConfigError
from proxy.server.routes import Routes
from proxy.settings.load import load
from tests.conftest import AGORA
from tests.peers.fake_upstream import FakeUpstream
from tests.proxy_server import ProxyServer
from tests.tried import Tried

pytestmark = pytest.mark.faults
EVERYTHING = AGORA.parent / "everything.yaml"
CHAT = ["/chat/completions", "/v1/chat/completions", "/pipelines/default/v1/chat/completions", "/v1/explain"]
SITE = list(dict.fromkeys(path for _, path, _ in Routes(cast(Any, None)).table))
# Turns are told without end: whoever reads them leaves by himself.
PATHS = [
    *CHAT,
    *(re.sub(r"\{.+?\}", "one", path) for path in SITE if path != "/v1/turns"),
    "/v1/models/fake",
    "/",
]
API = (
    "/v1",
    "/webhooks",
    "/chat",
    "/pipelines",
    "/healthz",
    "/readyz",
    "/metrics",
)  # all else may be read by people
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "BREW"]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=15,
)
FIELDS = st.sampled_from(
    [
        "messages",
        "model",
        "stream",
        "metadata",
        "user",
        "session_id",
        "tools",
        "n",
        "params",
        "contents",
        "id",
        "turn_id",
        "timestamp",
        "channel",
        "context",
        "call",
        "limit",
        "stream_options",
        "max_tokens",
        "summaries",
        "text",
        "category",
        "query",
        "interaction_type",
        "platform",
        "ttl_hours",
        "state",
        "eventType",
        "payload",
    ]
)
MESSAGE = st.dictionaries(
    st.sampled_from(
        ["role", "content", "name", "tool_calls", "tool_call_id", "turn_id", "timestamp", "metadata"]
    ),
    st.sampled_from(["user", "assistant", "tool", "system", "Hi", "<continue>", ""]) | JSON,
    max_size=6,
)
MARKS = ["source", "interrupted", "interrupt_timestamp", "original", "user", "publisher", "llm"]
EXTENSION = {
    "turn_id": JSON,
    "timestamp": JSON,
    "metadata": JSON | st.fixed_dictionaries({}, optional=dict.fromkeys(MARKS, JSON)),
    "interrupted": JSON,
    "publisher": JSON,
}
BODY = st.binary(max_size=200) | st.one_of(
    JSON, st.dictionaries(FIELDS | st.text(max_size=8), JSON | st.lists(MESSAGE, max_size=4), max_size=6)
).map(lambda value: json.dumps(value).encode())
VALUE = st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=40).map(
    lambda text: text.strip().encode("latin-1")
)
HEADERS = st.dictionaries(
    st.sampled_from(
        [
            "X-Session-Id",
            "X-User-Id",
            "X-Background",
            "X-Request-Id",
            "Content-Type",
            "Content-Encoding",
            "Accept",
            "Traceparent",
            "X-Agora-Customllm-Channel",
            "Authorization",
            "Expect",
            "Range",
            "If-Match",
            "X-User-Hmac",
        ]
    ),
    VALUE,
    max_size=3,
)
PIECES = [
    b"POST /v1/chat/completions HTTP/1.1\r\n",
    b"host: 127.0.0.1\r\n",
    b"content-length: 5\r\n",
    b"transfer-encoding: chunked\r\n",
    b"connection: upgrade\r\nupgrade: h2c\r\n",
    b"expect: 100-continue\r\n",
    b"\r\n",
    b"{}",
    b"2\r\n{}\r\n0\r\n\r\n",
    b"GET /healthz HTTP/1.0\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]
QUERY = st.dictionaries(
    st.sampled_from(["session_id", "user_id", "limit", "after", "pipeline", "x"]),
    st.text(max_size=20),
    max_size=3,
)


@pytest.fixture(scope="module", params=[AGORA, EVERYTHING], ids=["agora", "everything"])
def shipped(request: pytest.FixtureRequest) -> Iterator[ProxyServer]:
    with (
        FakeUpstream() as upstream,
        ProxyServer(
            request.param,
            {"UPSTREAM_BASE_URL": upstream.url, "UPSTREAM_MODEL": "fake", "MEMORY_URL": "memory:"},
        ) as proxy,
    ):
        yield proxy


def asked(proxy: ProxyServer, method: str, path: str, **call: Any) -> httpx2.Response:
    """The answer to a request, which comes within ten seconds, and is none of failure."""
    got = proxy.client.request(method, path, **call)
    assert got.status_code < 500, (got.status_code, got.text)
    assert got.headers["x-request-id"]
    assert got.headers["server-timing"]
    is_page = got.headers.get("content-type", "").startswith("text/html") and not path.startswith(API)
    if got.status_code >= 400 and method != "HEAD" and not is_page:
        assert set(got.json()["error"]) == {"message", "type", "param", "code"}
    return got


@given(st.sampled_from(METHODS), st.sampled_from(PATHS), BODY, HEADERS, QUERY)
@example("POST", "/v1/memory/sessions", b"[" * 100_000, {"Content-Type": b"application/json"}, {})
@example("POST", "/v1/chat/completions", b'{"messages":' + b"[" * 100_000, {}, {})
@example("POST", "/v1/explain", b'{"messages":[{"role":"user","content":' + b"9" * 5000 + b"}]}", {}, {})
@example("POST", "/v1/chat/completions", b"\x1f\x8b\x08", {"Content-Encoding": b"gzip"}, {})
@example("PUT", "/v1/memory/sessions/a", b'{"contents":[{"role":"user","timestamp":1e999}]}', {}, {})
def test_no_request_makes_it_fail(
    shipped: ProxyServer,
    method: str,
    path: str,
    body: bytes,
    headers: dict[str, bytes],
    query: dict[str, str],
) -> None:
    asked(shipped, method, path, content=body, headers=headers, params=query)


@given(st.text(max_size=60), st.sampled_from(["GET", "POST", "DELETE"]))
def test_no_path_makes_it_fail(shipped: ProxyServer, path: str, method: str) -> None:
    for base in ("/", "/v1/memory/sessions/", "/v1/models/", "/pipelines/"):
        asked(shipped, method, base + quote(path, safe="/.%", errors="replace"))


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "role": st.sampled_from(["user", "assistant", "system"]),
                "content": st.text(max_size=30).map("Hm, {}".format),  # one that says nothing may be dropped
            },
            optional=EXTENSION,
        ),
        min_size=1,
        max_size=6,
    ),
    st.dictionaries(
        st.sampled_from(
            ["turn_id", "timestamp", "context", "params", "channel", "call", "custom", "agent_info", "x"]
        ),
        JSON,
        max_size=4,
    ),
    st.booleans(),
)
def test_no_extension_field_costs_an_answer(
    shipped: ProxyServer, messages: list[dict[str, Any]], extensions: dict[str, Any], stream: bool
) -> None:
    body = {"messages": messages, **extensions, "stream": stream, "session_id": "fuzzed"}
    got = asked(shipped, "POST", "/v1/chat/completions", content=json.dumps(body).encode())
    assert got.status_code == 200, got.text
    assert b"Hello" in got.content
    assert b'"error"' not in got.content


@given(st.lists(st.binary(max_size=300) | st.sampled_from(PIECES), max_size=8))
def test_no_bytes_make_it_fail(shipped: ProxyServer, pieces: list[bytes]) -> None:
    with socket.create_connection(("127.0.0.1", shipped.port), timeout=10) as client:
        try:
            client.sendall(b"".join(pieces))
            client.shutdown(socket.SHUT_WR)
            got = b""
            while data := client.recv(65536):
                got += data
        except (ConnectionResetError, BrokenPipeError):
            return
    assert not got or got.startswith(b"HTTP/1.1 ")
    assert b"HTTP/1.1 5" not in got


def test_it_is_well_after_all_this(shipped: ProxyServer, tried: Tried) -> None:
    # What the fake model says to everything is no summary of anything.
    assert set(shipped.client.get("/readyz").json()["degraded"]) <= {"summaries"}
    assert shipped.chat().status_code == 200
    for what in ("requests to each of {n} endpoints", "paths", "extension fields", "bytes"):
        tried(f"any {what.format(n=len(PATHS))}", "an answer, or an error in OpenAI's shape")


SHIPPED = yaml.safe_load(EVERYTHING.read_text())


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from _places(each, (*place, key))


def _changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    key, *rest = place
    copy = value.copy()
    copy[key] = _changed(value[key], tuple(rest), new)
    return copy


def _loaded(text: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_bytes(text)
        try:
            load(path, {})
        except ConfigError as error:
            assert str(path) in error.message
            assert "Traceback" not in error.message


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
def test_no_file_makes_the_loader_fail(text: bytes) -> None:
    _loaded(text)


@given(st.sampled_from(list(_places(SHIPPED))), JSON)
def test_no_value_anywhere_makes_the_loader_fail(place: tuple[Any, ...], value: Any) -> None:
    _loaded(yaml.safe_dump(_changed(SHIPPED, place, value)).encode("utf-8", "replace"))
