"""Recall with models beside it: from outside, with an upstream that embeds and ranks."""

import asyncio
import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.memory.archive import embeddings
from proxy.memory.archive.vectors import sign_bits
from tests import remembering
from tests.meanings import asked, knowing, vector
from tests.peers.fake_upstream import HANG, FakeUpstream, answer, sse, stream_of
from tests.peers.scripted_model import calls
from tests.proxy_server import ProxyServer, Serve

CONFIG = """
memory:
  sessions: "${MEMORY_URL}"
  encryption: ["${KEY:-}"]
  deadline: ${DEADLINE:-1s}
  recall:
    embeddings: {upstream: aids, model: "${MODEL:-small}", least: 0.5}
upstreams:
  main: {base_url: "${UPSTREAM_BASE_URL:-practice:}"}
  aids: {base_url: "${AIDS}"}
pipelines:
  default: {upstreams: [main], request: [restore_history, recall]}
"""
WORDS = "My puppy sleeps in the kitchen."
QUESTION = "Which hound?"
KEY = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
LOOKING_UP = CONFIG.replace("request: [restore_history, recall]", "tools: [memory_recall]")
RANKING = CONFIG.replace("\nupstreams:", "\n    rerank: {upstream: aids, model: order}\nupstreams:")


@pytest.fixture(autouse=True)
def vectors_are_made_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "_EVERY", 0.05)


@pytest.fixture
def aids() -> Iterator[FakeUpstream]:
    with FakeUpstream() as server:
        server.script = knowing
        yield server


@pytest.fixture
def start(serve: Serve, tmp_path: Path, aids: FakeUpstream) -> Serve:
    def started(config: str = CONFIG, **environ: str) -> ProxyServer:
        return serve(config, MEMORY_URL=f"sqlite:{tmp_path / 'memory.db'}", AIDS=aids.url, **environ)

    return started


def say(proxy: ProxyServer, text: str, session: str = "s1", user: str = "ann") -> Any:
    headers = {"X-Session-Id": session, "X-User-Id": user}
    return proxy.chat([{"role": "user", "content": text}], headers=headers)


def settle(proxy: ProxyServer, *, embedded: bool = True) -> None:
    """Waits until all turns are archived, and have their vectors."""
    remembering.settle(proxy)
    memory = proxy.app.memory
    assert memory is not None and memory.archiving is not None
    archive, finder = memory.archiving.archive, memory.archiving.retriever

    async def idle() -> None:
        async with asyncio.timeout(40):
            # The last line of a call waits for the next one.
            while embedded and await archive.unembedded_texts(finder.embedder.model, limit=1, until=0):  # noqa: ASYNC110 - it works when it likes
                await asyncio.sleep(0.02)

    proxy.run(idle(), within=50)


def search(proxy: ProxyServer, query: str = QUESTION, user: str = "ann") -> list[dict[str, Any]]:
    found = proxy.client.post("/v1/memory/search", json={"user": user, "query": query})
    assert found.status_code == 200, found.text
    return found.json()["results"]


def texts(proxy: ProxyServer, query: str = QUESTION, user: str = "ann") -> list[str]:
    return [one["text"] for one in search(proxy, query, user)]


def prompt(upstream: FakeUpstream) -> str:
    return json.loads(upstream.requests[-1].body)["messages"][-1]["content"]


def test_a_second_call_is_told_what_means_the_same(start, upstream: FakeUpstream, aids: FakeUpstream):
    proxy = start()
    say(proxy, WORDS)
    settle(proxy)
    reply = say(proxy, QUESTION, session="s2")
    assert "x-turnkeeper-degraded" not in reply.headers
    assert f"the caller said: {WORDS}\n" in prompt(upstream)
    assert asked(aids.requests, "/embeddings")[-1] == {
        "model": "small",
        "input": [QUESTION],
        "encoding_format": "float",
    }


def test_a_model_that_looks_up_is_told_what_means_the_same(start, upstream: FakeUpstream):
    proxy = start(LOOKING_UP)
    say(proxy, WORDS)
    settle(proxy)
    rounds = iter([calls("memory_recall", query=QUESTION), sse(stream_of("Rex."))])
    upstream.script = lambda _: next(rounds)
    asking = [{"role": "user", "content": "Who sleeps where?"}]
    proxy.chat(asking, stream=True, headers={"X-Session-Id": "s2", "X-User-Id": "ann"})
    assert WORDS in [one["text"] for one in json.loads(prompt(upstream))["found"]]


def test_the_page_finds_what_means_the_same(start):
    proxy = start()
    say(proxy, WORDS)
    settle(proxy)
    page = proxy.client.get("/users/ann", params={"query": QUESTION})
    assert page.text.count(WORDS) == 1


@pytest.mark.parametrize("user", ["bob", ""])
def test_nobody_else_is_told(start, upstream: FakeUpstream, user: str):
    proxy = start()
    say(proxy, WORDS)
    settle(proxy)
    say(proxy, QUESTION, session="s2", user=user)
    assert prompt(upstream) == QUESTION
    assert texts(proxy, user=user) == []


@pytest.mark.parametrize(
    "script",
    [
        answer({"error": {"message": "down"}}, 503),
        answer(b"<html>"),
        answer({"data": [], "results": []}),
        answer(b'{"data": [{"index": 0, "embedding": [NaN]}], "results": [{"index": 0}]}'),
        [HANG],
    ],
    ids=["down", "no JSON", "wrong count", "NaN", "slow"],
)
def test_models_that_fail_cost_a_call_nothing_but_their_help(
    start, upstream: FakeUpstream, aids: FakeUpstream, script: Any
):
    aids.says(*script)
    proxy = start(RANKING, DEADLINE="1500ms")
    say(proxy, WORDS)
    settle(proxy, embedded=False)
    began = time.monotonic()
    reply = say(proxy, "Who sleeps in the kitchen?", session="s2")
    assert time.monotonic() - began < 5
    assert reply.status_code == 200
    assert "x-turnkeeper-degraded" not in reply.headers
    assert f"the caller said: {WORDS}\n" in prompt(upstream)
    assert WORDS in texts(proxy, "kitchen")


def test_what_could_not_be_embedded_is_when_the_model_is_back(start, aids: FakeUpstream):
    aids.says(*answer({"error": {"message": "down"}}, 503))
    first = start()
    say(first, WORDS)
    settle(first, embedded=False)
    assert texts(first) == []
    first.__exit__()
    aids.script = knowing
    again = start()
    settle(again)
    assert texts(again) == [WORDS]


def test_another_model_makes_all_vectors_anew(start, aids: FakeUpstream):
    first = start()
    say(first, WORDS)
    settle(first)
    first.__exit__()
    again = start(MODEL="large")
    settle(again)
    made = [(body["model"], body["input"]) for body in asked(aids.requests, "/embeddings")]
    line = f"User: {WORDS}\nAssistant: Hello there."
    assert made == [("small", [WORDS]), ("small", [line]), ("large", [line])]  # it was a question first
    assert texts(again) == [WORDS]


def test_a_ranking_puts_the_longest_first(start, aids: FakeUpstream):
    proxy = start(RANKING)
    said = ["Kitchen.", "The kitchen is bigger than it was.", "My kitchen."]
    for i, text in enumerate(said):
        say(proxy, text, session=f"s{i}")
    settle(proxy)
    assert texts(proxy, "kitchen") == sorted(said, key=len, reverse=True)
    assert [one["score"] for one in search(proxy, "kitchen")] == [0.034, 0.011, 0.008]
    body = asked(aids.requests, "/rerank")[-1]  # calls may have asked, too, of what was archived by then
    assert (body["model"], body["query"], sorted(body["documents"])) == ("order", "kitchen", sorted(said))


@pytest.mark.parametrize("key", ["", KEY])
def test_of_a_forgotten_person_no_vector_is_left_in_the_files(start, tmp_path: Path, key: str):
    proxy = start(KEY=key)
    say(proxy, WORDS)
    settle(proxy)
    assert texts(proxy) == [WORDS]
    with sqlite3.connect(tmp_path / "memory.db") as connection:
        (stored,) = connection.execute("SELECT sign FROM turnkeeper_vectors WHERE passage = 1").fetchone()
    connection.close()
    assert (stored == sign_bits(vector(WORDS))) is not bool(key)
    assert proxy.client.delete("/v1/memory/users/ann").status_code == 204
    assert texts(proxy) == []
    with sqlite3.connect(tmp_path / "memory.db") as connection:
        assert connection.execute("SELECT COUNT(*) FROM turnkeeper_vectors").fetchone() == (0,)
    connection.close()


def raw(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("*.db*"))
