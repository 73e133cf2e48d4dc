"""Data that a turn has read is freed before its answer comes, and the rest stays."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from proxy.memory.session import decode
from proxy.memory.stores.store import Key
from proxy.turn import state, turn
from tests.long_call import settle
from tests.peers.fake_upstream import (
    DONE,
    HANG,
    HEAD,
    ROLE,
    FakeUpstream,
    answer,
    chunk,
    delta,
    event,
    sse,
)
from tests.proxy_server import ProxyServer, Serve
from tests.waiting import until

CONFIG = """
memory: {sessions: "memory:"}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines: {default: {upstreams: [main], request: []}}
"""
FALLING_BACK = """
memory: {sessions: "memory:", deadline: 5s}
upstreams:
  main: {base_url: "${UPSTREAM_BASE_URL}", retries: 0}
  reserve: {base_url: "${RESERVE}", model: spare, retries: 0}
pipelines: {default: {upstreams: [main, reserve], request: []}}
"""
WORDS = "word " * 200
ONE_TOKEN_A_WORD, TWO_TOKENS_A_WORD = 210, 420
BEGUN = [HEAD, chunk(ROLE + delta(content="Half"))]
SAMPLED = 10
"""After so many turns a model's tokens are counted now and then."""


def user(text: str, number: int) -> dict[str, Any]:
    return {"role": "user", "content": text, "turn_id": number}


def counted(tokens: int) -> bytes:
    """A stream that says how many tokens its prompt had."""
    usage = {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1}
    return ROLE + delta(content="Yes.") + delta(finish="stop") + event(choices=[], usage=usage) + DONE


def chat(proxy: ProxyServer, *messages: dict[str, Any], session: str = "s1") -> int:
    body = {"model": "m", "stream": True, "session_id": session, "user_id": "ann", "messages": messages}
    return proxy.client.post("/v1/chat/completions", json=body).status_code


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


@pytest.fixture
def reserve() -> Iterator[FakeUpstream]:
    with FakeUpstream() as fake:
        yield fake


def test_a_fallback_model_has_its_own_scale(
    serve: Serve, upstream: FakeUpstream, reserve: FakeUpstream
) -> None:
    proxy = serve(FALLING_BACK, RESERVE=f"{reserve.url}/v1")
    upstream.says(*sse(counted(ONE_TOKEN_A_WORD)))
    for number in range(SAMPLED):
        assert chat(proxy, user(f"{WORDS} {number}", 1), session=f"s{number}") == 200
    settle(proxy)
    upstream.says(*answer({"error": {"message": "Bad gateway."}}, 502))
    reserve.says(*sse(counted(TWO_TOKENS_A_WORD)))
    assert chat(proxy, user(WORDS, 1), session="fallen back") == 200
    settle(proxy)
    memory = proxy.app.memory
    assert memory
    scales = [
        decode(proxy.run(memory.store.read(Key("default", name))).blob).scale
        for name in ("s0", "fallen back")
    ]
    assert scales[1] == pytest.approx(2 * scales[0], rel=0.1)


def test_the_messages_of_a_turn_are_freed_before_its_answer_streams(
    serve: Serve, upstream: FakeUpstream, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, window = serve(CONFIG), list[dict[str, Any]]()
    upstream.says(*sse(counted(ONE_TOKEN_A_WORD)))
    for number in range(SAMPLED):
        window += [user(f"{WORDS} {number}", number)]
        assert chat(proxy, *window) == 200
        window += [{"role": "assistant", "content": "Yes.", "turn_id": number}]
    settle(proxy)
    texts: list[str] = []

    def read(*given: Any) -> Any:
        new = read_turn(*given)
        texts.append(new.request.messages[0].text)
        return new

    read_turn = turn.read_turn
    monkeypatch.setattr(turn, "read_turn", read)
    upstream.says(*BEGUN, HANG)
    older = pool.submit(chat, proxy, *window, user("I would", SAMPLED))
    assert until(lambda: texts and sys.getrefcount(texts[0]) == 2)  # the list's own, and that of the call
    upstream.says(*sse(counted(ONE_TOKEN_A_WORD)))
    assert chat(proxy, *window, user("I would like tea", SAMPLED)) == 200
    assert older.result(10) == 200


@pytest.mark.parametrize(("size", "reads"), [(1_000, 1), (100_000, 0)])
def test_a_claim_is_read_again_where_another_turn_comes_unless_its_body_is_large(
    size: int,
    reads: int,
    serve: Serve,
    upstream: FakeUpstream,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy, before = serve(CONFIG), user("a" * size, 1)
    upstream.says(*BEGUN, HANG)
    older = pool.submit(chat, proxy, before, user("I would", 2))
    assert until(lambda: upstream.requests)
    upstream.says(*sse(counted(ONE_TOKEN_A_WORD)))
    read_again: list[bytes] = []

    def read(*given: Any) -> Any:
        read_again.append(given[0])
        return read_request(*given)

    read_request = state.read_request
    monkeypatch.setattr(state, "read_request", read)
    assert chat(proxy, before, user("I would like tea", 2)) == 200
    assert older.result(10) == 200
    assert len(read_again) == reads
