"""Encrypted names of sessions and users: what they reveal, and where sessions are found."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.memory.errors import StoreError
from proxy.memory.stores.codec import NAME_MARK, Plain
from proxy.memory.stores.encryption import Encryption
from proxy.memory.stores.names import NamedStore, with_names
from proxy.memory.stores.session_store import SessionStore
from proxy.memory.stores.store import KEEP_EXPIRY, BlobWrite, Key, StoredBlob
from proxy.memory.stores.volatile import VolatileStore
from proxy.newest import Newest

TEXT = st.text(st.characters(exclude_categories=()), min_size=1)
ONE, TWO = b"1" * 32, b"2" * 32
KEY = Key("acme", "call-1")
pytestmark = pytest.mark.anyio


def names(*keys: bytes):
    return Encryption(keys or [ONE]).names()


def named(store: VolatileStore, *keys: bytes) -> NamedStore:
    return NamedStore(store, names(*keys), Newest(10))


@given(tenant=TEXT, name=TEXT)
def test_a_name_comes_back_and_is_not_to_be_seen(tenant: str, name: str) -> None:
    stored = names().encrypted(tenant, name)
    assert names().encrypted(tenant, name) == stored
    assert names(TWO, ONE).decrypted(stored) == names().decrypted(stored) == name
    assert stored.startswith(NAME_MARK)
    assert len(name) < 3 or name not in stored


@given(one=st.tuples(TEXT, TEXT), other=st.tuples(TEXT, TEXT))
def test_no_two_names_are_stored_alike(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (names().encrypted(*one) == names().encrypted(*other)) == (one == other)


@given(name=TEXT, key=st.sampled_from([ONE, TWO]))
def test_all_forms_of_a_name_say_it_and_its_own_is_last(name: str, key: bytes) -> None:
    other = TWO if key == ONE else ONE
    first, second, plain = names(key, other).forms("acme", name)
    assert plain == name
    assert first == names(key).encrypted("acme", name)
    assert second == names(other).encrypted("acme", name)


@given(text=TEXT)
def test_what_only_looks_encrypted_is_a_name(text: str) -> None:
    own = names()
    for name in (text, NAME_MARK + text, own.mark + text):
        assert own.decrypted(name) == name
        assert own.decrypted(own.encrypted("acme", name)) == name


@given(name=TEXT)
def test_what_a_lost_key_has_encrypted_is_a_name_by_which_it_is_found(name: str) -> None:
    lost = names(TWO).encrypted("acme", name)
    assert names().decrypted(lost) == lost
    assert names().forms("acme", lost) == (lost,)


def test_nobody_has_no_name() -> None:
    assert names().forms("", "") == ("",)


def test_without_keys_a_store_stays_as_it_is() -> None:
    store = VolatileStore()
    assert with_names(Plain(), store, None) == (store, None)
    assert SessionStore(store, Plain()).breaker.driver() is store


async def write(
    store, key: Key = KEY, blob: bytes = b"1", cold: tuple[bytes, ...] = (), ttl: float = 60
) -> None:
    stored = await store.read(key)
    put = BlobWrite(blob, stored.version if stored else 0, ttl, cold)
    assert await store.write(key, put)


async def places(store: VolatileStore) -> list[str]:
    return [line.session for line in await store.list(KEY.tenant)]


async def test_a_session_with_a_plain_name_gets_an_encrypted_one_when_it_is_written() -> None:
    bare = VolatileStore()
    await write(bare, cold=tuple(b"%d" % number for number in range(2500)))
    store = named(bare)
    (line,) = await store.list("acme")
    assert line.session == KEY.session
    assert (await store.read(KEY)).blob == b"1"
    assert await places(bare) == [KEY.session]
    await write(store, blob=b"2", cold=(b"last",))
    await asyncio.sleep(0.01)
    (place,) = await places(bare)
    assert KEY.session not in place
    stored = await store.read(KEY)
    assert stored.blob == b"2"
    cold = [*await store.cold(KEY, limit=3000)]
    assert cold == [*(b"%d" % number for number in range(2500)), b"last"]
    assert await store.write(KEY, BlobWrite(b"3", stored.version, 60))


async def test_what_changes_nothing_of_an_expiry_moves_nothing() -> None:
    bare = VolatileStore()
    await write(bare)
    store = named(bare)
    await write(store, blob=b"2", ttl=KEEP_EXPIRY)
    assert await places(bare) == [KEY.session]
    assert (await store.read(KEY)).blob == b"2"


@pytest.mark.parametrize("operation", ["write", "replace"])
async def test_a_session_with_a_plain_name_is_not_made_twice(operation: str) -> None:
    bare = VolatileStore()
    await write(bare)
    store = named(bare)
    assert not await getattr(store, operation)(KEY, BlobWrite(b"2", 0, 60))
    assert await places(bare) == [KEY.session]


async def test_what_another_writes_while_a_session_is_moved_is_not_lost() -> None:
    class Busy(VolatileStore):
        """Another server writes to the plain name behind the copy's back."""

        async def cold(self, key: Key, *, start: int = 0, limit: int = 1000) -> list[bytes]:
            if key == KEY and not start:
                stored = await VolatileStore.read(self, KEY)
                assert stored
                assert await VolatileStore.write(self, KEY, BlobWrite(b"theirs", stored.version, 60))
            return await super().cold(key, start=start, limit=limit)

    bare = Busy()
    await write(bare)
    store = named(bare)
    await write(store, blob=b"ours")
    await asyncio.sleep(0.01)
    assert (await store.read(KEY)).blob == b"theirs"
    assert await places(bare) == [KEY.session]


async def test_a_copy_that_came_late_is_written_over() -> None:
    class Slow(VolatileStore):
        """The first copy is made, and said to be too slow."""

        slow = True

        async def replace(self, key: Key, put: BlobWrite) -> bool:
            done = await super().replace(key, put)
            if self.slow:
                self.slow = False
                raise StoreError("too slow")
            return done

    bare = Slow()
    await write(bare)
    store = named(bare)
    stored = await store.read(KEY)
    assert await store.write(KEY, BlobWrite(b"2", stored.version, 60, new_version=7))
    assert await store.write(KEY, BlobWrite(b"3", 7, 60, cold=[b"c"], new_version=8))
    await asyncio.sleep(0.01)
    assert await store.read(KEY) == StoredBlob(b"3", 8)
    assert await store.cold(KEY) == [b"c"]
    assert len(await places(bare)) == 1


async def test_what_is_deleted_while_it_is_moved_is_gone() -> None:
    class Interrupted(VolatileStore):
        """Before the copy is made, one of two places is deleted, and the other one after all else."""

        def __init__(self) -> None:
            super().__init__()
            self.deleted_one, self.moved = asyncio.Event(), asyncio.Event()
            self.deleting: asyncio.Future[bool] | None = None

        async def replace(self, key: Key, put: BlobWrite) -> bool:
            if self.deleting is None:
                self.deleting = asyncio.ensure_future(store.delete(KEY))
                await self.deleted_one.wait()
            return await super().replace(key, put)

        async def delete(self, key: Key) -> bool:
            if self.deleted_one.is_set():
                await self.moved.wait()
            deleted = await super().delete(key)
            self.deleted_one.set()
            return deleted

    bare = Interrupted()
    await write(bare)
    store = named(bare)
    await write(store, blob=b"2")
    bare.moved.set()
    assert bare.deleting
    await bare.deleting
    await asyncio.sleep(0.01)
    assert await store.read(KEY) is None
    assert await places(bare) == []


async def test_two_servers_whose_keys_are_being_changed_find_each_other_s_sessions() -> None:
    bare = VolatileStore()
    stores = [named(bare, ONE, TWO), named(bare, TWO, ONE)]
    for number in range(6):
        await write(stores[number % 2], blob=b"%d" % number, cold=(b"%d" % number,))
        await asyncio.sleep(0.01)
        for store in stores:
            assert (await store.read(KEY)).blob == b"%d" % number
            assert await store.cold(KEY) == [b"%d" % each for each in range(number + 1)]
            assert [line.session for line in await store.list("acme")] == [KEY.session]
    assert await stores[0].delete(KEY)
    assert [await store.read(KEY) for store in stores] == [None, None]
    for store in stores:
        assert await store.deleted(KEY)


async def test_names_of_all_kinds_are_listed_once_page_by_page() -> None:
    bare, keys = (
        VolatileStore(),
        [Key("acme", f"{sign}call-{n}") for n in range(20) for sign in ("", "+", "~")],
    )
    for number, key in enumerate(keys):
        await write((bare, named(bare), named(bare, TWO))[number % 3], key)
    store = named(bare, ONE, TWO)
    listed, after = [], ""
    while page := await store.list("acme", after=after, limit=7):
        listed += [line.session for line in page]
        after = listed[-1]
    assert sorted(listed) == sorted(key.session for key in keys)


async def test_a_list_goes_on_behind_a_session_that_has_gone() -> None:
    bare = VolatileStore()
    store = named(bare)
    for number in range(30):
        await write(bare if number % 2 else store, Key("acme", f"call-{number}"))
    seen, after = set(), ""
    while page := await store.list("acme", after=after, limit=4):
        seen |= {line.session for line in page}
        after = page[-1].session
        assert await store.delete(Key("acme", after))
    assert len(seen) == 30


async def test_a_session_that_is_due_is_settled_where_it_is() -> None:
    bare = VolatileStore()
    assert await bare.write(KEY, BlobWrite(b"1", 0, 60, due=1.0))
    store = named(bare)
    (due,) = await store.take_due(["acme"], limit=5, lease=60)
    assert due.key == KEY
    settled = await store.settle(due, 1.0)
    assert settled
    assert settled.key == KEY
    assert [each.key for each in await store.take_due(["acme"], limit=5, lease=60)] == [KEY]


async def test_no_tombstone_has_a_name_that_no_session_had() -> None:
    bare = VolatileStore()
    store = named(bare)
    await write(store)
    assert await store.delete(KEY)
    assert await bare.deleted(KEY) is None
    await write(bare)
    assert await store.delete(KEY)
    assert await store.read(KEY) is None


async def test_what_is_no_session_of_a_tenant_is_stored_under_its_own_name() -> None:
    bare = VolatileStore()
    for key in (Key("acme/facts", "0123"), Key("~users", "secret")):
        await write(named(bare), key)
        assert isinstance(await bare.read(key), StoredBlob)


async def test_a_session_is_settled_by_its_name_until_it_is_gone() -> None:
    bare = VolatileStore()
    store = named(bare)
    assert await store.write(KEY, BlobWrite(b"1", 0, 60, due=1.0))
    (due,) = await store.take_due(["acme"], limit=5, lease=60)
    settled = await store.settle(due, 2.0)
    assert settled
    assert settled.key == KEY
    assert await store.delete(KEY)
    assert await store.settle(settled, 3.0) is None


async def test_what_the_background_reads_and_writes_has_the_same_names() -> None:
    bare = VolatileStore()
    store, background = with_names(Encryption([ONE]), bare, bare)
    assert background
    await write(background, Key("acme", "call-2"))
    await write(store)
    assert all(name.startswith(NAME_MARK) for name in await places(bare))
    for each in (store, background):
        assert {line.session for line in await each.list("acme")} == {"call-1", "call-2"}
    assert with_names(Encryption([ONE]), bare, None)[1] is None


async def test_writes_that_have_ended_are_given_up() -> None:
    bare = VolatileStore()
    await write(bare)
    store = named(bare)
    for blob in (b"2", b"3"):
        await write(store, blob=blob)
    await asyncio.sleep(0)
    assert not store._writes
