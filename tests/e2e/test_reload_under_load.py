"""A configuration is read again, well or badly, while fifty streams run: none of them is hurt."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.peers.fake_upstream import DONE, END, HEAD, ROLE, FakeUpstream, chunk, delta
from tests.serving_process import ServingProcess, until
from tests.tried import Tried

pytestmark = pytest.mark.faults
CONFIG = """
listen: {port: "${PORT}"}
memory: {sessions: "sqlite:${MEMORY}"}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines: {default: {upstreams: [main], model: one, request: [restore_history]}}
"""
STREAMS, WORDS = 50, [f"word {place} " for place in range(30)]
WHOLE = ROLE + b"".join(delta(content=word) for word in WORDS) + DONE


@pytest.fixture
def serving(tmp_path: Path, upstream: FakeUpstream) -> Iterator[ServingProcess]:
    environ = {"UPSTREAM_BASE_URL": upstream.url, "MEMORY": str(tmp_path / "memory.db")}
    with ServingProcess(tmp_path, CONFIG, **environ) as process:
        yield process


def test_no_stream_is_hurt_and_every_turn_is_kept(
    serving: ServingProcess, upstream: FakeUpstream, tried: Tried
) -> None:
    words = [step for word in WORDS for step in (chunk(delta(content=word)), 0.05)]
    upstream.says(HEAD, chunk(ROLE), *words, chunk(DONE), END)
    with ThreadPoolExecutor(STREAMS) as pool:
        streams = [
            pool.submit(serving.chat, "Hi", f"s{each}", stream=True, model="own") for each in range(STREAMS)
        ]
        assert until(lambda: len(upstream.requests) == STREAMS)
        for name in ("two", "three", "four"):
            serving.path.write_text(CONFIG.replace("upstreams:", "upstreamz:"))
            serving.hang_up()
            time.sleep(0.1)
            serving.path.write_text(CONFIG.replace("model: one", f"model: {name}"))
            serving.hang_up()
            time.sleep(0.1)
        answers = [each.result() for each in streams]
    assert [each.status_code for each in answers] == [200] * STREAMS
    assert all(each.content == WHOLE for each in answers)
    upstream.says(HEAD, chunk(WHOLE), END)
    assert until(lambda: asked_for(serving, upstream) == "four")
    assert "upstreamz" in serving.log
    assert "new configuration is not used" in serving.log
    names = {f"s{each}" for each in range(STREAMS)}
    assert until(lambda: names <= set(listed(serving)), 5)
    assert "Traceback" not in serving.log
    tried("six edits, three of them bad, under 50 streams", "every stream whole, every turn held")


def asked_for(serving: ServingProcess, upstream: FakeUpstream) -> str:
    """The model that a call asks for now."""
    assert serving.chat(stream=True).status_code == 200
    return str(upstream.last.json["model"])


def listed(serving: ServingProcess) -> list[str]:
    told = serving.client.get("/v1/memory/sessions", params={"limit": 100}).json()
    return [row["id"] for row in told["data"]]
