"""Laws 1 and 2 from outside: what goes through goes through whole, and nothing else does."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.peers.fake_upstream import DONE, END, HEAD, ROLE, FakeUpstream, answer, chunk, completion, delta
from tests.proxy_server import CONFIG, ProxyServer

PACE = settings(max_examples=150)
NEWLINES = st.sampled_from([b"\n", b"\r\n", b"\r"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ProxyServer, FakeUpstream]]:
    path: Path = tmp_path_factory.mktemp("laws") / "config.yaml"
    path.write_text(CONFIG)
    with FakeUpstream() as fake, ProxyServer(path, {"UPSTREAM_BASE_URL": fake.url}) as proxy:
        yield proxy, fake


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """A stream that carries something, in any framing, cut anywhere."""
    texts = draw(st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=6))
    strange = st.sampled_from(
        [b": comment\n\n", b"event: x\ndata: y\n\n", b"\n\n", b"retry: 5\n\n", b"data\n\n"]
    )
    events = [ROLE, *(delta(content=text) for text in texts)]
    for extra in draw(st.lists(strange, max_size=3)):
        events.insert(draw(st.integers(1, len(events))), extra)
    body = b"".join([*events, DONE]).replace(b"\n", draw(NEWLINES))
    cuts = sorted(draw(st.sets(st.integers(1, len(body) - 1), max_size=8)))
    return [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]


@PACE
@given(pieces=streams())
def test_the_client_receives_the_upstreams_bytes(pair: Any, pieces: list[bytes]) -> None:
    proxy, upstream = pair
    upstream.says(HEAD, *(step for piece in pieces for step in (chunk(piece), 0.0)), END)
    got = proxy.chat(stream=True)
    assert got.status_code == 200
    assert got.content == b"".join(pieces)


@PACE
@given(body=json_values)
def test_a_whole_answer_is_the_upstreams_too(pair: Any, body: Any) -> None:
    proxy, upstream = pair
    data = json.dumps({"choices": [{"message": body}], "anything": body}).encode()
    upstream.says(*answer(data))
    assert proxy.chat().content == data


KNOWN = [
    "temperature",
    "tools",
    "stop",
    "logit_bias",
    "seed",
    "user",
    "response_format",
    "prediction",
    "top_p",
]
EXTENSIONS = [
    "turn_id",
    "timestamp",
    "interruptable",
    "context",
    "channel",
    "rtm_token",
    "session_id",
    "call",
]
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system"]), "content": st.text(min_size=1)},
        optional={"turn_id": json_values, "timestamp": json_values, "metadata": json_values},
    ),
    max_size=5,
)


@PACE
@given(
    messages=messages,
    known=st.dictionaries(st.sampled_from(KNOWN), json_values),
    extensions=st.dictionaries(
        st.sampled_from(EXTENSIONS) | st.text(min_size=1).map("x_{}".format), json_values
    ),
)
def test_the_upstream_receives_the_clients_body_less_the_extensions(
    pair: Any, messages: list[dict[str, Any]], known: dict[str, Any], extensions: dict[str, Any]
) -> None:
    proxy, upstream = pair
    upstream.says(*answer(completion()))
    body = {**extensions, "model": "m", **known, "messages": messages}
    assert proxy.chat(content=json.dumps(body).encode()).status_code == 200
    plain = [{"role": message["role"], "content": message["content"]} for message in messages]
    assert upstream.last.json == {"model": "m", **known, "messages": plain}
