"""Embeddings and rankings over HTTP: asked as their servers want it, and believed only in their shape."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from proxy.background.models import HttpEmbedder, HttpReranker
from proxy.errors import UpstreamBroken, UpstreamError, UpstreamRefused
from proxy.upstream.client import HttpUpstream
from proxy.upstream.providers import PROVIDERS
from proxy.upstream.target import Health, Target
from tests.meanings import knowing, vector
from tests.peers.fake_upstream import HANG, FakeUpstream, answer

T = TypeVar("T")


def run(upstream: FakeUpstream, work: Callable[[Target], Awaitable[T]]) -> T:
    async def whole() -> T:
        http = HttpUpstream(upstream.url, connect=1, max_connections=1, environ={})
        headers = ((b"content-type", b"application/json"),)
        target = Target(
            name="m",
            health=Health(),
            upstream=http,
            provider=PROVIDERS["any"],
            headers=headers,
            first_token=1,
            total=1,
        )
        try:
            return await work(target)
        finally:
            await http.aclose()

    return asyncio.run(whole())


def embed(upstream: FakeUpstream, *texts: str) -> Any:
    return run(upstream, lambda target: HttpEmbedder(target, model="small", timeout=0.3).vectors(texts))


def rank(upstream: FakeUpstream, *texts: str) -> Any:
    return run(
        upstream, lambda target: HttpReranker(target, model="small", timeout=0.3).relevance("Which?", texts)
    )


def test_vectors_come_in_the_order_of_their_texts(upstream: FakeUpstream):
    upstream.script = knowing
    assert embed(upstream, "dog", "tea") == [vector("dog"), vector("tea")]
    assert upstream.last.path.endswith("/v1/embeddings")
    assert upstream.last.json == {"model": "small", "input": ["dog", "tea"], "encoding_format": "float"}


def test_relevance_comes_in_the_order_of_the_texts(upstream: FakeUpstream):
    upstream.script = knowing
    assert rank(upstream, "a", "abc", "ab") == [0.001, 0.003, 0.002]
    assert upstream.last.path.endswith("/v1/rerank")
    assert upstream.last.json == {
        "model": "small",
        "query": "Which?",
        "documents": ["a", "abc", "ab"],
        "top_n": 3,
    }


def test_what_is_long_or_half_a_character_is_sent_as_it_can_be(upstream: FakeUpstream):
    upstream.script = knowing
    embed(upstream, "a\ud800" + "b" * 10_000)
    (text,) = upstream.last.json["input"]
    assert len(text) == 8000 and text.startswith("a?b")


def line(embedding: Any, index: int = 0) -> dict[str, Any]:
    return {"embedding": embedding, "index": index}


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"\xff",
        b"[" * 100_000,
        json.dumps({"data": [{"index": 0, "embedding": [float("nan")]}]}).encode(),
        b'{"data": [{"index": 0, "embedding": [1e999]}]}',
        *(
            {"data": data}
            for data in (
                None, [], [line([1.0]), line([1.0], 1)], [line([1.0], 1)], [line([0.0])], [line([])],
                [line(["1"])], [line("AAAA")], [line([1.0] * 8193)], [{}],
            )
        ),
        {"error": {"message": "no"}},
    ],
    ids=range(16),
)  # fmt: skip
def test_a_wrong_embedding_is_none(upstream: FakeUpstream, body: Any):
    upstream.says(*answer(body))
    with pytest.raises(UpstreamBroken):
        embed(upstream, "dog")


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b'{"results": [{"index": 0, "relevance_score": NaN}, {"index": 1, "relevance_score": 0}]}',
        b'{"results": [{"index": 0, "relevance_score": 1e999}, {"index": 1, "relevance_score": 0}]}',
        {"results": [{"index": 0, "relevance_score": 1}]},
        {"results": [{"index": 0, "relevance_score": 1}] * 2},
        {"results": [{"index": 0, "relevance_score": 1}, {"index": 2, "relevance_score": 1}]},
        {"results": [{"index": 0, "relevance_score": "1"}, {"index": 1, "relevance_score": 1}]},
        {"data": []},
    ],
    ids=range(8),
)
def test_a_wrong_ranking_is_none(upstream: FakeUpstream, body: Any):
    upstream.says(*answer(body))
    with pytest.raises(UpstreamBroken):
        rank(upstream, "a", "b")


@pytest.mark.parametrize("asking", [embed, rank])
def test_a_refusal_is_told_as_one(upstream: FakeUpstream, asking: Callable[..., Any]):
    upstream.says(*answer({"error": {"message": "no"}}, 413))
    with pytest.raises(UpstreamRefused) as refused:
        asking(upstream, "a")
    assert refused.value.status == 413


@pytest.mark.parametrize("asking", [embed, rank])
def test_a_silent_server_is_waited_for_until_its_time_is_over(
    upstream: FakeUpstream, asking: Callable[..., Any]
):
    upstream.says(HANG)
    with pytest.raises(UpstreamError):
        asking(upstream, "a")
