"""Servers with different encryption keys on one archive: they agree as far as they can, and come to rest."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.clock import wall_time
from proxy.memory.archive.archive import Archive, open_archive
from proxy.memory.archive.names import NamedDatabase
from proxy.memory.archive.records import Fact
from proxy.memory.archive.sql import Steps, Transaction, fetch
from proxy.memory.session import Entry, Session
from proxy.memory.stores.codec import Codec, Plain
from proxy.memory.stores.encryption import Encryption
from proxy.memory.stores.sql import Statement
from proxy.memory.stores.store import Key, Owner
from tests.memory.conftest import postgresql, sqlite
from tests.peers.postgres_server import PostgresServer

pytestmark = pytest.mark.anyio

OLD, NEW, OTHER = b"o" * 32, b"n" * 32, b"x" * 32
SERVERS = {
    "old": [OLD],
    "old first": [OLD, NEW],
    "new first": [NEW, OLD],
    "new": [NEW],
    "other": [OTHER, NEW],
    "none": [],
}
USERS = [Owner("acme", name) for name in ("ann", "bob")]
BEFORE = wall_time() - 10_000
MOST_STATEMENTS = 150
"""In one operation, whatever the others have done before it."""
SECRETS = Statement("SELECT purpose, blob FROM turnkeeper_secrets ORDER BY purpose, number")


class Counted:
    """A database that counts statements, and takes only so many."""

    def __init__(self, database: Any) -> None:
        self.count = 0
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def write(self, work: Transaction[Any]) -> Any:
        return await self._database.write(partial(self._counted, work))

    async def read(self, work: Transaction[Any]) -> Any:
        return await self._database.read(partial(self._counted, work))

    def _counted(self, work: Transaction[Any]) -> Steps[Any]:
        steps, reply = work(), None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                return end.value
            self.count += len(step)
            assert self.count <= MOST_STATEMENTS, "this has no end"
            reply = yield step


class Servers:
    """Servers by name, each opened when it is first needed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._open: dict[str, tuple[Archive, Counted]] = {}

    def __getitem__(self, name: str) -> Archive:
        if name not in self._open:
            codec: Codec = Encryption(keys) if (keys := SERVERS[name]) else Plain()
            archive = open_archive(self._url, codec=codec)
            named: Any = archive._database
            if isinstance(named, NamedDatabase):
                counted = named._database = Counted(named._database)
            else:
                counted = archive._database = archive._sessions._database = Counted(named)
            self._open[name] = archive, counted
        archive, counted = self._open[name]
        counted.count = 0
        return archive

    async def end(self, name: str) -> None:
        if name in self._open:
            await self._open.pop(name)[0].aclose()

    async def secrets(self) -> dict[str, list[bytes]]:
        """All that are stored, by purpose."""
        found = defaultdict(list)
        for purpose, blob in await rows(self["none"], SECRETS):
            found[purpose].append(bytes(blob))
        return found


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[Servers]:
    servers = Servers(url)
    async with AsyncExitStack() as stack:
        for name in SERVERS:
            stack.push_async_callback(servers.end, name)
        yield servers


async def rows(archive: Archive, statement: Statement) -> list[tuple[Any, ...]]:
    return await archive._database.write(partial(fetch, statement, {}))


@pytest.fixture(params=[sqlite, postgresql])
async def url(request: pytest.FixtureRequest) -> str:
    place: Callable[[pytest.FixtureRequest], Awaitable[str]] = request.param
    return await place(request)


def fact(at: float) -> Fact:
    return Fact(id=f"at {at}", text="Has a dog.", created=at)


def session(user: Owner, at: float) -> Session:
    words = Entry(role="user", turn=0, content="Hello.", recorded_at=at)
    return Session(entries=(words,), user=user.user, created=at, updated=at)


STEPS = ["say", "tell", "forget", "be late", "restart"]


async def one_step(servers: Servers, name: str, step: str, user: Owner, at: float) -> None:
    if step == "say":
        await servers[name].save_session(Key("acme", f"call {at}"), session(user, at), as_of=at)
    elif step == "tell":
        await servers[name].add_fact(user, fact(at))
    elif step == "forget":
        await servers[name].forget(user, at=at)
    elif step == "be late":
        await servers[name].add_fact(user, fact(BEFORE))
    else:
        await servers.end(name)


def steps_of(*names: str) -> Any:
    return st.lists(
        st.tuples(st.sampled_from(names), st.sampled_from(STEPS), st.sampled_from(USERS)),
        min_size=20,
        max_size=60,
    )


@pytest.fixture(params=["sqlite", "postgresql"])
def new_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Gives the address of another empty place, as often as is asked."""

    async def place() -> str:
        if request.param == "sqlite":
            return f"sqlite:{tmp_path_factory.mktemp('keys') / 'archive.db'}"
        server: PostgresServer = request.getfixturevalue("postgres")
        return server.url(await server.new_schema())

    return place


FEW = settings(max_examples=8, suppress_health_check=list(HealthCheck), deadline=None)


@FEW
@given(steps=steps_of(*SERVERS))
async def test_whatever_keys_servers_have_secrets_are_few_and_every_step_ends(
    new_url: Callable[[], Awaitable[str]], steps: list[tuple[str, str, Owner]]
) -> None:
    keys = {key for each in SERVERS.values() for key in each}
    async with serving(await new_url()) as servers:
        for at, (name, step, user) in enumerate(steps):
            await one_step(servers, name, step, user, BEFORE + 1 + at)
        for _ in range(3):  # what the last step has changed goes through all
            for name in SERVERS:
                await one_step(servers, name, "tell", USERS[0], BEFORE)
        stored = await servers.secrets()
        # Each key makes one at most; without keys another is made for each key that encrypts the one before.
        assert len(stored["names"]) <= len(keys)
        assert len(stored["tombstones"]) <= 2 * len(keys) + 1
        assert all(len(blob) <= 68 * len(keys) for blobs in stored.values() for blob in blobs)
        for step in ("tell", "restart", "tell"):
            for name in SERVERS:
                await one_step(servers, name, step, USERS[0], BEFORE)
        assert await servers.secrets() == stored


@FEW
@given(steps=steps_of("old", "old first", "new first"))
async def test_while_keys_are_changed_all_servers_have_the_same_users_and_erasures(
    new_url: Callable[[], Awaitable[str]], steps: list[tuple[str, str, Owner]]
) -> None:
    names = ("old", "old first", "new first")
    forgotten: set[Owner] = set()
    sessions: dict[Owner, set[str]] = defaultdict(set)
    facts: set[Owner] = set()
    async with serving(await new_url()) as servers:
        await servers["old"].add_fact(USERS[0], fact(BEFORE))  # the keys are changed of what there is
        await servers["old"].forget(USERS[0], at=BEFORE - 1)
        for at, (name, step, user) in enumerate(steps):
            now = BEFORE + 1 + at
            await one_step(servers, name, step, user, now)
            if step == "say":
                sessions[user].add(f"call {now}")
            elif step == "tell" or (step == "be late" and user not in forgotten):
                facts.add(user)
            elif step == "forget":
                forgotten.add(user)
                sessions.pop(user, None)
                facts.discard(user)
            for each in names:
                assert {*await servers[each].list_users("acme")} == {u.user for u in {*facts, *sessions}}
                for one in USERS:
                    found = await servers[each].user_sessions(one)
                    assert {call.session for call in found} == sessions.get(one, set())
        assert [len(blobs) for blobs in (await servers.secrets()).values()] == [1, 1]


async def test_servers_that_write_at_once_come_to_rest(url: str) -> None:
    names = ("old", "new", "new first", "old first")
    async with serving(url) as servers:
        await one_step(servers, "old", "tell", USERS[0], BEFORE)
        for at in range(1, 20):
            step = STEPS[at % 3]
            await asyncio.gather(
                *(
                    one_step(servers, name, step, USERS[0], BEFORE + at + place / 8)
                    for place, name in enumerate(names)
                )
            )
        assert all(len(blobs) <= 2 for blobs in (await servers.secrets()).values())


async def test_an_erasure_under_a_secret_that_could_not_be_read_before_is_obeyed(url: str) -> None:
    async with serving(url) as servers:
        await one_step(servers, "old", "tell", USERS[0], BEFORE)
        await one_step(servers, "new", "say", USERS[0], BEFORE + 1)
        await one_step(servers, "new first", "forget", USERS[0], BEFORE + 9)
        await one_step(servers, "new", "say", USERS[0], BEFORE + 2)
        for name in ("new", "new first"):
            assert await servers[name].list_users("acme") == []


async def test_a_plain_secret_in_use_is_encrypted_and_one_beside_it_ends_with_itself(url: str) -> None:
    async with serving(url) as servers:
        for at in range(5):
            for name in ("none", "old", "new first"):
                await one_step(servers, name, "forget", USERS[0], BEFORE + at)
        first, plain = (await servers.secrets())["tombstones"]
        assert (len(first), len(plain)) == (2 * 68, 32)
