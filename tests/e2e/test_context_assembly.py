"""The prompt combines the recent turns, the user's facts and recalled passages, all read at once."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from proxy.memory.archive.records import DocumentChunk
from proxy.memory.stores.store import BlobWrite, Key
from tests.peers.fake_upstream import FakeUpstream
from tests.peers.scripted_model import says
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import settle

CONFIG = """
memory:
  sessions: "${MEMORY_URL}"
  deadline: 5s
  window: {max_messages: 20, keep_messages: 10, ttl: 30m}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines:
  default: {upstreams: [main], request: [restore_history, inject_facts, recall]}
"""


@pytest.fixture
def proxy(serve: Serve, upstream: FakeUpstream, tmp_path: Path) -> ProxyServer:
    upstream.script = says("Noted.")
    return serve(CONFIG, MEMORY_URL=f"sqlite:{tmp_path / 'm.db'}")


def say(proxy: ProxyServer, text: str, session: str = "s1") -> Any:
    headers = {"X-Session-Id": session, "X-User-Id": "ann"}
    got = proxy.chat([{"role": "user", "content": text}], headers=headers)
    settle(proxy)
    return got


def contents(upstream: FakeUpstream) -> list[str]:
    return [message["content"] for message in upstream.last.json["messages"]]


def filled(proxy: ProxyServer) -> Any:
    memory = proxy.app.memory
    assert memory and memory.archiving
    proxy.client.post("/v1/memory/users/ann/facts", json={"text": "Lives in Berlin."})
    chunk = DocumentChunk(title="Opening hours", text="The harbour museum opens at nine on Sundays.")
    proxy.run(memory.archiving.archive.add_document("default", "faq.md", [chunk], at=time.time()))
    say(proxy, "We went to the zoo.")
    return memory


def test_talk_facts_and_findings_stand_in_one_prompt(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    filled(proxy)
    say(proxy, "When does the harbour museum open?")
    facts, *talk, newest = contents(upstream)
    assert "Lives in Berlin." in facts
    assert talk == ["We went to the zoo.", "Noted."]
    assert "opens at nine on Sundays" in newest
    assert newest.endswith("When does the harbour museum open?")


def test_all_three_are_asked_at_once_and_none_waits_for_another(proxy, upstream, monkeypatch) -> None:
    memory = filled(proxy)
    began: list[str] = []
    everybody = asyncio.Event()

    def met(name: str, asked: Any) -> Any:
        async def ask(*arguments: Any, **named: Any) -> Any:
            began.append(name)
            if len(began) == 3:
                everybody.set()
            await everybody.wait()
            return await asked(*arguments, **named)

        return ask

    store, facts, archiving = memory.store, memory.facts, memory.archiving
    monkeypatch.setattr(store, "load", met("stm", store.load))
    monkeypatch.setattr(facts.reader, "read_nowait", lambda _: None)  # as where a server has to be asked
    monkeypatch.setattr(facts.reader, "read", met("ltm", facts.reader.read))
    monkeypatch.setattr(archiving.recall, "search", met("search", archiving.recall.search))
    got = say(proxy, "When does the harbour museum open?")
    assert sorted(began[:3]) == ["ltm", "search", "stm"]
    assert "x-turnkeeper-degraded" not in got.headers
    assert len(contents(upstream)) == 4


def test_what_is_known_and_what_was_said_outlive_the_talk(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    memory = filled(proxy)
    proxy.run(_expire(memory.store))
    say(proxy, "Where did we go, to the zoo?")
    facts, newest = contents(upstream)
    assert "Lives in Berlin." in facts
    assert "the caller said: We went to the zoo." in newest
    export = proxy.client.get("/v1/memory/users/ann/export").json()
    assert export["turns"][0]["message"]["content"] == "We went to the zoo."


async def _expire(store: Any) -> None:
    key = Key("default", "s1")
    held = await store.read(key)
    await store.write(key, BlobWrite(held.blob, version=held.version, ttl=0.01))
    await asyncio.sleep(0.05)
