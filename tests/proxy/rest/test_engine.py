"""Agora's engine over REST, played by a server that remembers what it was asked."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from proxy.rest.engine import Engine, EngineError
from tests.peers.fake_upstream import FakeUpstream, answer
from tests.peers.redis_server import LOOPBACK, free_port

pytestmark = pytest.mark.anyio

ROOT = "/v1/projects/app-1/agents"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def engine(upstream: FakeUpstream) -> AsyncIterator[Engine]:
    upstream.says(*answer({"agent_id": "a/1"}))
    engine = Engine("app-1", "Basic hunter2", base=upstream.url)
    yield engine
    await engine.aclose()


async def test_a_summary_is_pushed_into_a_running_agent_and_its_params_stay(engine, upstream):
    told = [{"role": "system", "content": "Ann likes jazz."}]
    await engine.remember("a/1", told)
    assert (upstream.last.method, upstream.last.path) == ("POST", f"{ROOT}/a%2F1/update")
    assert upstream.last.headers["authorization"] == "Basic hunter2"
    assert upstream.last.json == {"properties": {"llm": {"system_messages": told}}}


async def test_its_history_is_what_it_holds(engine, upstream):
    contents = [{"role": "user", "content": "Hi"}]
    upstream.says(*answer({"contents": contents}))
    assert await engine.history("a") == contents
    assert (upstream.last.method, upstream.last.path) == ("GET", f"{ROOT}/a/history")
    upstream.says(*answer({}))
    assert await engine.history("a") == []


async def test_it_speaks_and_is_silent(engine, upstream):
    await engine.speak("a", "One moment.", priority="APPEND")
    assert upstream.last.json == {"text": "One moment.", "priority": "APPEND"}
    await engine.interrupt("a")
    assert (upstream.last.path, upstream.last.json) == (f"{ROOT}/a/interrupt", {})
    with pytest.raises(ValueError, match="512"):
        await engine.speak("a", "é" * 257)


@pytest.mark.parametrize("status", [302, 400, 401, 404, 503])
async def test_a_refusal_is_told_without_the_credentials(engine, upstream, status):
    upstream.says(*answer({"detail": "hunter2", "reason": "x"}, status=status))
    with pytest.raises(EngineError, match=str(status)) as caught:
        await engine.history("a")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("body", [b"", b"<html>"])
async def test_an_answer_that_is_no_json_is_an_error(engine, upstream, body):
    upstream.says(*answer(body))
    with pytest.raises(EngineError):
        await engine.history("a")


async def test_an_engine_that_is_not_there_is_an_error():
    engine = Engine("app-1", "Basic hunter2", base=f"http://{LOOPBACK}:{free_port()}")
    with pytest.raises(EngineError):
        await asyncio.wait_for(engine.interrupt("a"), 5)
    await engine.aclose()
