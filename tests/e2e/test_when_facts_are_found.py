"""Facts are looked for once a call pauses or ends, whatever was killed meanwhile; a useless model rests."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx2
import pytest

from proxy.background import backoff
from proxy.circuit import Backoff
from proxy.memory.facts.extraction import ENOUGH
from proxy.server.reload import Reload
from proxy.settings.load import load
from tests import preloaded
from tests.e2e.conftest import Address
from tests.e2e.test_agora_life_cycle import SECRET, notice, seconds, tell
from tests.peers.fake_upstream import FakeUpstream, Received, answer, completion
from tests.peers.scripted_model import fact, is_extraction, lines, listed, says
from tests.proxy_server import ProxyServer, Serve
from tests.serving_process import LISTEN, ServingProcess, at_rest
from tests.waiting import until

CONFIG = """
memory:
  sessions: "${MEMORY_URL}"
  archive: {url: "${ARCHIVE_URL:-}"}
  window: {max_messages: 12, keep_messages: 4, ttl: "${TTL:-2h}"}
  deadline: 2s
  summaries: {upstream: main, model: none}
  facts: {upstream: main, model: "${MODEL:-small}", pause: "${PAUSE:-1h}"}
  work: "${WORK:-true}"
webhooks: {agora: {secret: "${AGORA_WEBHOOK_SECRET:-}"}}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines: {default: {upstreams: [main], request: [restore_history, inject_summaries, inject_facts]}}
"""
FACTS = "/v1/memory/users/ann/facts"
GAUGE = 'turnkeeper_background_failing{work="facts"}'
NONSENSE = "I would rather talk about the weather."
MEMORIES = ["sqlite", "redis", "postgresql"]


def script(request: Received) -> Any:
    """Finds a fact in each message; a model called ``bad`` talks nonsense instead, and ``none`` is away."""
    if request.json["model"] == "none":
        return answer({"error": {"message": "Busy"}}, 503)
    if not is_extraction(request):
        return says("Noted.")(request)
    if request.json["model"] == "bad":
        return answer(completion(NONSENSE))
    return listed([fact(line["text"], line["number"]) for line in lines(request, "said")])


@pytest.fixture(params=MEMORIES)
def places(request: pytest.FixtureRequest, address: Address, tmp_path: Path) -> dict[str, str]:
    """Sessions, and an archive where they are no SQL."""
    archive = {"ARCHIVE_URL": f"sqlite:{tmp_path / 'archive.db'}"} if request.param == "redis" else {}
    return {"MEMORY_URL": address(request.param), **archive}


def looked_at(upstream: FakeUpstream) -> list[list[str]]:
    """What the questions about facts showed."""
    asked = [request for request in list(upstream.requests) if is_extraction(request)]
    return [[line["text"] for line in lines(request, "said")] for request in asked]


def dog_sentences(turns: int) -> list[str]:
    return [f"I have {number} dogs." for number in range(turns)]


def talk(chat: Callable[[dict[str, Any]], Any], turns: int, session: str = "room-1") -> None:
    """A call of so many turns; the engine shows the newest message alone."""
    for number, text in enumerate(dog_sentences(turns)):
        message = {"role": "user", "content": text, "turn_id": number}
        assert chat({"messages": [message], "channel": session, "user_id": "ann"}).status_code == 200


def fact_texts(client: httpx2.Client) -> list[str]:
    return sorted(one["text"] for one in client.get(FACTS).json()["data"])


def posted(client: httpx2.Client) -> Callable[[dict[str, Any]], Any]:
    return lambda body: client.post("/v1/chat/completions", json={"model": "fake", **body})


# --- when


def test_nothing_is_looked_for_in_a_running_call_and_all_of_it_once_the_agent_leaves(
    serve: Serve, upstream: FakeUpstream, places: dict[str, str]
) -> None:
    upstream.script = script
    proxy = serve(CONFIG, AGORA_WEBHOOK_SECRET=SECRET, **places)
    for number, text in enumerate(dog_sentences(20)):
        talk_on = {"role": "user", "content": text, "turn_id": number}
        assert proxy.chat([talk_on], channel="room-1", user_id="ann").status_code == 200
        settle_turns(proxy)
    assert looked_at(upstream) == []
    tell(proxy, notice(102, start_ts=seconds(60), stop_ts=seconds()))
    assert until(lambda: fact_texts(proxy.client) == sorted(dog_sentences(20)))
    assert looked_at(upstream) == [dog_sentences(20)]


def settle_turns(proxy: ProxyServer) -> None:
    """Waits until all turns are written: summaries, whose model is away, are tried again for ever."""
    assert until(lambda: at_rest(proxy.client))


def test_a_call_that_goes_on_without_a_pause_is_looked_at_after_a_hundred_turns(
    serve: Serve, upstream: FakeUpstream, tmp_path: Path
) -> None:
    upstream.script = script
    proxy = serve(CONFIG, MEMORY_URL=f"sqlite:{tmp_path / 'memory.db'}")
    talk(posted(proxy.client), ENOUGH - 1)
    settle_turns(proxy)
    assert looked_at(upstream) == []
    last = {"role": "user", "content": "I have a cat.", "turn_id": ENOUGH}
    proxy.chat([last], channel="room-1", user_id="ann")
    assert until(lambda: "I have a cat." in fact_texts(proxy.client))
    shown = [text for texts in looked_at(upstream) for text in texts]
    assert shown == [*dog_sentences(ENOUGH - 1), "I have a cat."]


def test_a_pause_that_is_longer_than_a_session_lasts_ends_before_it(
    serve: Serve, upstream: FakeUpstream, tmp_path: Path
) -> None:
    upstream.script = script
    proxy = serve(CONFIG, MEMORY_URL=f"sqlite:{tmp_path / 'memory.db'}", PAUSE="1h", TTL="14s")
    talk(posted(proxy.client), 1)
    assert until(lambda: fact_texts(proxy.client) == dog_sentences(1), seconds=14)


@pytest.mark.parametrize("by", ["serve", "worker"])
def test_what_was_said_before_a_kill_is_looked_at_after_it(
    upstream: FakeUpstream, places: dict[str, str], tmp_path: Path, by: str
) -> None:
    upstream.script = script
    environ = {**places, "UPSTREAM_BASE_URL": upstream.url, "PAUSE": "1h"}
    with ServingProcess(tmp_path, LISTEN + CONFIG, **environ) as serving:
        talk(posted(serving.client), 8)
        assert until(lambda: at_rest(serving.client))
        serving.kill()
    assert looked_at(upstream) == []
    environ |= {"PAUSE": "10ms", "WORK": "false" if by == "worker" else "true"}
    with ServingProcess(tmp_path, LISTEN + CONFIG, **environ) as serving:
        with working(serving.path, environ) if by == "worker" else nullcontext():
            assert until(lambda: fact_texts(serving.client) == sorted(dog_sentences(8)), 60), fact_texts(
                serving.client
            )
        assert looked_at(upstream) == [dog_sentences(8)]


@contextmanager
def working(path: Path, environ: dict[str, str]) -> Iterator[None]:
    """``turnkeeper worker`` beside the servers."""
    with preloaded.greeting("worker", str(path), env={**os.environ, "PORT": "1", **environ}) as (process, _):
        yield
        process.terminate()
        process.wait(15)


# --- a model that cannot


def readiness(client: httpx2.Client) -> Any:
    return client.get("/readyz").json()


READY = {"status": "ready", "degraded": []}
RESTING = {"status": "degraded", "degraded": ["facts"]}


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "_SESSION", Backoff(0.02, 1.0))
    monkeypatch.setattr(backoff, "_JOB", Backoff(0.2, 1.0))


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("useless", [NONSENSE, "", "{}"])
def test_after_three_useless_answers_the_model_rests_says_so_and_the_first_useful_one_ends_it(
    serve: Serve, upstream: FakeUpstream, tmp_path: Path, caplog: pytest.LogCaptureFixture, useless: str
) -> None:
    upstream.script = lambda r: answer(completion(useless)) if is_extraction(r) else script(r)
    url = f"sqlite:{tmp_path / 'memory.db'}"
    proxy = serve(
        CONFIG.replace("  summaries: {upstream: main, model: none}\n", ""), MEMORY_URL=url, PAUSE="50ms"
    )
    assert readiness(proxy.client) == READY
    with caplog.at_level(logging.INFO, "turnkeeper"):
        for number in range(6):
            talk(posted(proxy.client), 1, session=f"room-{number}")
        assert until(lambda: readiness(proxy.client) == RESTING)
        assert f"{GAUGE} 1.0" in proxy.client.get("/metrics").text
        asked = len(looked_at(upstream))
        assert not until(lambda: len(looked_at(upstream)) > asked + 12, seconds=2), "once in a pause, for all"
        upstream.script = script
        assert until(lambda: readiness(proxy.client) == READY)
    assert fact_texts(proxy.client) == dog_sentences(1)
    assert f"{GAUGE} 0.0" in proxy.client.get("/metrics").text
    said = [r.getMessage() for r in caplog.records if r.getMessage().startswith("facts:")]
    assert len(said) == 2
    assert "3 answers in a row could not be used" in said[0]
    assert "('small': The model" in said[0]
    assert "memory.facts.model" in said[0]
    assert "works again" in said[1]


def test_another_model_is_asked_at_once_when_the_configuration_is_read_again(
    upstream: FakeUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "_SESSION", Backoff(0.02, 300.0))
    monkeypatch.setattr(backoff, "_JOB", Backoff(300.0, 300.0))
    upstream.script = script
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    places = {"UPSTREAM_BASE_URL": upstream.url, "MEMORY_URL": f"sqlite:{tmp_path / 'memory.db'}"}
    environ = {**places, "PAUSE": "50ms", "MODEL": "bad"}
    with ProxyServer(path, environ) as proxy:
        talk(posted(proxy.client), 3)
        assert until(lambda: readiness(proxy.client) == RESTING)
        better = environ | {"MODEL": "small"}
        reload = Reload(proxy.app, load(path, environ), path, better)
        proxy.run(reload.reload())
        assert until(lambda: fact_texts(proxy.client) == sorted(dog_sentences(3)))
        assert readiness(proxy.client) == READY


def test_every_process_that_serves_says_that_facts_rest_and_one_counts_it(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    upstream.script = script
    environ = {"UPSTREAM_BASE_URL": upstream.url, "MEMORY_URL": f"sqlite:{tmp_path / 'memory.db'}"}
    environ |= {"PAUSE": "50ms", "MODEL": "bad"}
    config = LISTEN + CONFIG.replace("model: none", "model: small")
    with ServingProcess(tmp_path, config, "--workers", "2", **environ) as serving:
        talk(posted(serving.client), 2)

        def fresh(path: str) -> httpx2.Response:  # a connection of its own may lead to any of the processes
            return httpx2.get(f"{serving.root}{path}", timeout=10)

        assert until(lambda: all(fresh("/readyz").json() == RESTING for _ in range(12)), 30)
        assert until(lambda: f"{GAUGE} 1.0" in fresh("/metrics").text)
        assert "3 answers in a row could not be used" in serving.log
