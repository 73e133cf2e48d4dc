"""What a turn has written reaches the background process as bytes, and is not read from the store again."""

import asyncio
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from proxy.background import changes
from proxy.background.changes import ChangedSessions
from proxy.memory.memory import Memory
from proxy.memory.session import Session, encode
from proxy.memory.stores.store import Key
from proxy.runtime import Generation
from proxy.server.background import ServersLink
from proxy.server.bus import Bus, Inbox, Message, WrittenMessage, WrittenSessions, inboxes
from proxy.settings.build import build_memory
from proxy.settings.load import load
from tests.peers.fake_upstream import FakeUpstream, answer, completion
from tests.proxy_server import ProxyServer
from tests.waiting import until

CONFIG = """
memory: {sessions: "${MEMORY_URL}"}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", model: one}}
pipelines: {default: {upstreams: [main]}}
"""
KEY = Key("default", "call")


class Background:
    """What the background process does with its inbox, with counts of what it reads and decodes."""

    def __init__(self, inbox: Inbox, path: Path, environ: dict[str, str]) -> None:
        self._inbox, self._path, self._environ = inbox, path, environ
        self.messages: list[WrittenMessage] = []
        self.notified: list[tuple[Key, Session]] = []
        self.reads = self.decodes = 0

    def work(self) -> None:
        """Brings all that has arrived to the jobs."""
        asyncio.run(self._work())

    async def _work(self) -> None:
        memory = build_memory(load(self._path, self._environ))
        assert memory
        bus, changed = Bus([self._inbox], own=0), ChangedSessions(memory)

        def receive(message: Message) -> None:
            assert isinstance(message, WrittenMessage)
            self.messages.append(message)
            changed.add(message.sessions, sender=message.sender, incomplete=message.incomplete)

        with self._counting(memory):
            bus.read(receive)
            await changed.read()
        await memory.aclose()

    @contextmanager
    def _counting(self, memory: Memory) -> Iterator[None]:
        read, decode = memory.store.read, changes.decode

        async def counted_read(key: Key, *, background: bool = False):
            self.reads += 1
            return await read(key, background=background)

        def counted_decode(blob: bytes) -> Session:
            self.decodes += 1
            return decode(blob)

        with pytest.MonkeyPatch.context() as patch:
            # Of this memory alone: the server has one of its own in this process.
            patch.setattr(memory.store, "read", counted_read)
            patch.setattr(changes, "decode", counted_decode)
            patch.setattr(memory.writer, "notify", lambda *written: self.notified.append(written))
            yield

    @property
    def names(self) -> list[str]:
        return [key.session for message in self.messages for key, _ in message.sessions]

    @property
    def bare_names(self) -> list[str]:
        return [key.session for message in self.messages for key, blob in message.sessions if blob is None]


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
def background(inbox: Inbox, tmp_path: Path, environ: dict[str, str]) -> Background:
    path = tmp_path / "served.yaml"
    path.write_text(CONFIG)
    return Background(inbox, path, environ)


@pytest.fixture
def server(background: Background, inbox: Inbox, environ: dict[str, str]) -> Iterator[ProxyServer]:
    with ProxyServer(background._path, environ, inbox) as proxy:
        yield proxy


def arrived(background: Background) -> bool:
    background.work()
    return bool(background.notified)


def test_a_turn_costs_the_background_one_decode_and_no_read(
    server: ProxyServer, background: Background
) -> None:
    for turn in range(5):
        background.notified.clear()
        message = {"role": "user", "content": f"Turn {turn}", "turn_id": turn}
        assert server.chat([message], headers={"X-Session-Id": "call"}).status_code == 200
        assert until(lambda: arrived(background))
        ((key, session),) = background.notified
        assert key == KEY
        assert [entry.text for entry in session.entries][-2:] == [f"Turn {turn}", "Yes."]
    assert background.reads == 0
    assert background.decodes == 5
    assert background.names == ["call"] * 5


def test_a_large_session_is_read_from_the_store(server: ProxyServer, background: Background) -> None:
    message = {"role": "user", "content": "x" * 110_000, "turn_id": 1}
    assert server.chat([message], headers={"X-Session-Id": "call"}).status_code == 200
    assert until(lambda: arrived(background))
    assert background.bare_names == ["call"]
    assert (background.reads, background.decodes) == (1, 0)
    assert background.notified[0][1].entries[0].text == "x" * 110_000


def session(*texts: str) -> Session:
    return Session(user="ann", state={"texts": list(texts)})


def put(written: WrittenSessions, sessions: Iterable[tuple[str, Session]]) -> None:
    async def write() -> None:
        for name, each in sessions:
            written.session_written(Key("default", name), encode(each))

    asyncio.run(write())


def test_of_a_session_that_is_written_often_the_newest_state_alone_is_sent(
    inbox: Inbox, background: Background
) -> None:
    written = WrittenSessions(inbox)
    put(written, [("call", session(*"x" * number)) for number in range(50)])
    written.flush()
    background.work()
    assert background.names == ["call"]
    assert background.notified == [(KEY, session(*"x" * 49))]
    assert background.decodes == 1


def test_what_finds_no_room_is_sent_later_and_beyond_4_mb_by_name(
    inbox: Inbox, background: Background
) -> None:
    written = WrittenSessions(inbox)
    put(written, [(f"s{number}", session("x" * 90_000)) for number in range(80)])
    while written._sessions:
        written.flush()
        background.work()
    assert background.names == [f"s{number}" for number in range(80)]
    assert background.bare_names == [f"s{number}" for number in range(44, 80)]
    assert background.decodes == 44
    assert not any(message.incomplete for message in background.messages)


def test_a_session_that_two_processes_write_is_read_from_the_store(background: Background) -> None:
    async def run() -> None:
        memory = build_memory(load(background._path, background._environ))
        assert memory
        changed = ChangedSessions(memory)
        with background._counting(memory):
            for sender in (1, 1, 2, 1, 1):
                changed.add([(KEY, encode(session(f"by {sender}")))], sender=sender)
                await changed.read()
        await memory.aclose()

    asyncio.run(run())
    assert (background.decodes, background.reads) == (3, 2)
    assert [key for key, _ in background.notified] == [KEY] * 3, "the store has none"


def test_what_is_written_between_two_configurations_is_left_for_the_second(
    background: Background, inbox: Inbox
) -> None:
    memory = build_memory(load(background._path, background._environ))
    assert memory
    runtime = SimpleNamespace(memory=memory, background_failures={})
    generation = cast(Generation, SimpleNamespace(runtime=runtime, start_background=lambda: None))
    lifeline, server = os.pipe()

    async def reload() -> None:
        link = ServersLink(inbox, [], lifeline)
        async with link.working(generation):
            await asyncio.sleep(0)
        written = WrittenSessions(inbox)
        written.session_written(KEY, encode(session("Hi.")))
        written.flush()
        await asyncio.sleep(0.05)  # a loop that still read its inbox would have done so
        async with link.working(generation):
            async with asyncio.timeout(10):
                while not background.notified:  # noqa: ASYNC110 - what notifies knows no event
                    await asyncio.sleep(0)
        asyncio.get_running_loop().remove_reader(lifeline)
        await memory.aclose()

    with background._counting(memory):
        asyncio.run(reload())
    os.close(lifeline)
    os.close(server)
    assert [key for key, _ in background.notified] == [KEY]
