"""What a turn has written reaches the background process by name, with the time when work on it is due."""

import asyncio
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from proxy.memory.memory import Memory
from proxy.memory.stores.store import NEVER_DUE, Key
from proxy.runtime import Generation
from proxy.server.background import ServersLink
from proxy.server.bus import LARGEST, Bus, BusMessage, Inbox, WrittenMessage, WrittenSessions, inboxes
from proxy.settings.build import build_memory
from proxy.settings.load import load
from tests.peers.fake_upstream import FakeUpstream, answer, completion
from tests.proxy_server import ProxyServer
from tests.waiting import awaited

CONFIG = """
memory:
  sessions: "${MEMORY_URL}"
  window: {max_messages: 4, keep_messages: 2}
  summaries: {upstream: main}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", model: one}}
pipelines: {default: {upstreams: [main]}}
"""
KEY = Key("default", "call")


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    (made,) = inboxes(1)
    with made[0], made[1]:
        yield made


@pytest.fixture
def environ(tmp_path: Path, upstream: FakeUpstream) -> dict[str, str]:
    upstream.script = lambda _: answer(completion("Yes."))
    return {"MEMORY_URL": f"sqlite:{tmp_path / 'memory.db'}", "UPSTREAM_BASE_URL": upstream.url}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "served.yaml"
    path.write_text(CONFIG)
    return path


def arrived(inbox: Inbox) -> list[WrittenMessage]:
    """The messages in an inbox."""
    messages: list[BusMessage] = []
    Bus([inbox], own=0).read(messages.append)
    return [message for message in messages if isinstance(message, WrittenMessage)]


def test_a_turn_says_which_session_it_wrote_and_when_work_on_it_is_due(
    inbox: Inbox, config: Path, environ: dict[str, str]
) -> None:
    with ProxyServer(config, environ, inbox) as proxy:
        due = []
        for turn in range(4):
            message = {"role": "user", "content": f"Turn {turn}", "turn_id": turn}
            assert proxy.chat([message], headers={"X-Session-Id": "call"}).status_code == 200
            (message,) = awaited(lambda: arrived(inbox))
            ((key, when),) = message.sessions
            assert key == KEY
            due.append(when)
    assert due == [NEVER_DUE, NEVER_DUE, 0.0, 0.0], "past four messages there is something to summarise"


def put(written: WrittenSessions, sessions: Iterable[tuple[str, float]]) -> None:
    async def write() -> None:
        for name, due in sessions:
            written.session_written(Key("default", name), due)

    asyncio.run(write())


def test_a_session_that_is_written_often_is_named_once(inbox: Inbox) -> None:
    written = WrittenSessions(inbox)
    put(written, [("call", float(number)) for number in range(50)])
    written.flush()
    (message,) = arrived(inbox)
    assert message.sessions == [(KEY, 49.0)]


@pytest.mark.parametrize("length", [1, 1_500])
def test_what_finds_no_room_is_sent_later(inbox: Inbox, length: int) -> None:
    written = WrittenSessions(inbox)
    put(written, [(f"s{number}" * length, 1.0) for number in range(3_000)])
    messages: list[WrittenMessage] = []
    while written._sessions:
        written.flush()
        messages += arrived(inbox)
    names = [key.session for message in messages for key, _ in message.sessions]
    if length == 1:
        assert names == [f"s{number}" for number in range(3_000)]
    assert not any(message.incomplete for message in messages) or 100 * 3 * length > LARGEST


def test_of_more_names_than_are_kept_the_background_hears_that_there_were_some(inbox: Inbox) -> None:
    written = WrittenSessions(inbox)
    inbox[0].close()  # nobody reads
    put(written, [(f"s{number}", 1.0) for number in range(10_001)])
    written.flush()
    assert not written._sessions
    assert written._incomplete


def test_what_is_written_between_two_configurations_is_left_for_the_second(
    config: Path, environ: dict[str, str], inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = build_memory(load(config, environ))
    assert memory
    notified: list[tuple[Key, float]] = []
    monkeypatch.setattr(memory.writer, "session_written", lambda *written: notified.append(written))
    compared: list[bool] = []
    monkeypatch.setattr(Memory, "compare", lambda _: compared.append(True))
    runtime = SimpleNamespace(memory=memory, background_failures={})
    generation = cast(Generation, SimpleNamespace(runtime=runtime, start_background=lambda: None))
    lifeline, server = os.pipe()

    async def reload() -> None:
        link = ServersLink(inbox, [], lifeline)
        async with link.working(generation):
            await asyncio.sleep(0)
        written = WrittenSessions(inbox)
        written.session_written(KEY, 7.0)
        written.names_lost()
        await asyncio.sleep(0.05)  # a loop that still read its inbox would have done so
        assert not notified
        async with link.working(generation):
            async with asyncio.timeout(10):
                while not notified:  # noqa: ASYNC110 - what notifies knows no event
                    await asyncio.sleep(0)
        asyncio.get_running_loop().remove_reader(lifeline)
        await memory.aclose()

    asyncio.run(reload())
    os.close(lifeline)
    os.close(server)
    assert notified == [(KEY, 7.0)]
    assert compared == [True]
