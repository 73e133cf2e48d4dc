"""What every store does, whatever it is made of."""

import asyncio
import random
import time
import uuid
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.memory.errors import SessionDeleted, StoreError
from proxy.memory.stores.store import KEEP_EXPIRY, NEVER_DUE, BlobWrite, DueSession, Key, Store, StoredBlob
from tests.memory.conftest import FORGETFUL, SEALED, Open

pytestmark = pytest.mark.anyio
LENIENT = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
FEW = settings(max_examples=15, suppress_health_check=LENIENT)
MANY = settings(max_examples=2000, suppress_health_check=LENIENT)
KEY = Key("acme", "call-1")
# What breaks quoting, globbing, joining, sorting, C strings and encoders.
HOSTILE = [
    *(
        "'",
        "''; DROP TABLE turnkeeper_sessions; --",
        '"',
        "\\",
        "\0",
        "a\0",
        "a\0b",
        "%",
        "_",
        "a%",
        "*",
        "?",
    ),
    *(
        ":",
        "a:b",
        "a",
        "A",
        "{a}",
        "\n",
        " ",
        "a ",
        "é",
        "e\u0301",
        "ß",
        "公园",
        "😀",
        "\ud83d",
        "\uffff",
        "$1",
        "/../",
    ),
]
IDS = st.sampled_from(HOSTILE) | st.text(st.characters(codec=None), min_size=1, max_size=20)


async def put(
    store: Store, key: Key = KEY, blob: bytes = b"1", *, ttl: float = 60, cold: tuple[bytes, ...] = ()
) -> int:
    """Writes over whatever is there; the new version."""
    held = await store.read(key)
    assert await store.write(key, BlobWrite(blob, version=held.version if held else 0, ttl=ttl, cold=cold))
    return (await read(store, key)).version


async def read(store: Store, key: Key = KEY) -> StoredBlob:
    held = await store.read(key)
    assert held is not None
    return held


async def gone(store: Store, key: Key = KEY) -> None:
    """Returns once a session has expired."""
    async with asyncio.timeout(10):
        while await store.read(key):  # noqa: ASYNC110 - it expires when it is time
            await asyncio.sleep(0.25)
    await asyncio.sleep(0.1)  # its parts may expire one after the other


async def soon(store: Store) -> StoredBlob:
    """What somebody is writing just now."""
    for attempt in range(5000):
        if held := await store.read(KEY):
            return held
        await asyncio.sleep(0.001 if attempt > 1000 else 0)
    raise AssertionError("nobody wrote")


# --- reading and writing


async def test_what_was_never_written_is_not_there(store: Store):
    assert await store.read(KEY) is None
    assert await store.cold(KEY) == []
    assert await store.list("acme") == []


async def test_what_was_written_is_read(store: Store):
    assert await store.write(KEY, BlobWrite(b"hello", version=0, ttl=60)) is True
    held = await read(store)
    assert held.blob == b"hello"
    assert held.version > 0


@pytest.mark.parametrize("blob", [b"", b"\0", bytes(range(256)), b"\xc1TK1", b"\xc1TK0x", b"\x80"])
async def test_any_bytes_come_back_as_they_were(store: Store, blob: bytes):
    await put(store, blob=blob, cold=(blob, blob))
    assert (await read(store)).blob == blob
    assert await store.cold(KEY) == [blob, blob]


async def test_two_megabytes_are_a_session_like_any_other(store: Store):
    blob = bytes(range(256)) * 8192
    await put(store, blob=blob, cold=(blob,))
    assert (await read(store)).blob == blob
    assert await store.cold(KEY) == [blob]


# --- compare and set


async def test_of_two_writers_one_wins(store: Store):
    version = await put(store)
    won = await asyncio.gather(
        *[store.write(KEY, BlobWrite(b"%d" % n, version=version, ttl=60, cold=[b"c"])) for n in range(2)]
    )
    assert sorted(won) == [False, True]
    assert (await read(store)).blob == b"%d" % won.index(True)
    assert await store.cold(KEY) == [b"c"]


async def test_of_two_writers_who_found_nothing_one_wins(store: Store):
    won = await asyncio.gather(*[store.write(KEY, BlobWrite(b"%d" % n, version=0, ttl=60)) for n in range(2)])
    assert sorted(won) == [False, True]


async def test_writers_on_two_connections_do_not_overwrite_one_another(reopen: Open, driver: str):
    if driver in FORGETFUL:
        pytest.skip("two of these share nothing")
    one, other = reopen(), reopen()
    version = await put(one)
    won = await asyncio.gather(
        *[
            store.write(KEY, BlobWrite(name, version=version, ttl=60))
            for store, name in [(one, b"1"), (other, b"2")]
        ]
    )
    assert sorted(won) == [False, True]
    assert (await read(one)).blob == (await read(other)).blob == [b"1", b"2"][won.index(True)]


async def test_who_wrote_last_learns_what_another_process_wrote_since(reopen: Open, driver: str):
    if driver in FORGETFUL:
        pytest.skip("two of these share nothing")
    one, other = reopen(), reopen()
    version = await put(one)
    assert await other.write(KEY, BlobWrite(b"theirs", version=version, ttl=60))
    held = await read(one)
    assert held.blob == b"theirs"
    assert await one.write(KEY, BlobWrite(b"ours", version=held.version, ttl=60))
    version = (await read(one)).version
    assert await other.write(KEY, BlobWrite(b"theirs", version=version, ttl=60))
    assert not await one.write(KEY, BlobWrite(b"ours", version=version, ttl=60))
    version, at = (await read(one)).version, time.time()
    await other.delete(KEY)
    await refused(one, version, at)


async def test_a_write_that_lost_changes_nothing(store: Store):
    version = await put(store, blob=b"kept", cold=(b"c",))
    assert not await store.write(KEY, BlobWrite(b"lost", version=version + 1, ttl=60, cold=[b"lost"]))
    assert not await store.write(KEY, BlobWrite(b"lost", version=0, ttl=60, cold=[b"lost"]))
    assert await store.read(KEY) == StoredBlob(b"kept", version)
    assert await store.cold(KEY) == [b"c"]


async def test_a_version_other_than_none_makes_no_session(store: Store):
    assert not await store.write(KEY, BlobWrite(b"x", version=7, ttl=60))
    assert await store.read(KEY) is None


async def test_every_write_has_a_version_of_its_own(store: Store):
    versions = []
    for _ in range(5):
        random.seed(1)  # as somebody's filter may
        versions.append(await put(store, blob=b"same"))
    assert len(set(versions)) == 5


async def test_a_session_made_anew_is_not_the_one_that_was_deleted(store: Store):
    version = await put(store)
    await store.delete(KEY)
    await put(store, blob=b"new")
    assert not await store.write(KEY, BlobWrite(b"what was forgotten", version=version, ttl=60))


async def test_a_write_is_read_before_it_is_durable(store: Store):
    writing = asyncio.ensure_future(store.write(KEY, BlobWrite(b"1", version=0, ttl=60)))
    held = await soon(store)
    next_one = store.write(KEY, BlobWrite(b"2", version=held.version, ttl=60))
    assert await asyncio.gather(writing, next_one) == [True, True]
    assert (await read(store)).blob == b"2"


async def test_fifty_sessions_are_written_at_once(store: Store):
    async def live(n: int) -> None:
        for turn in range(4):
            await put(store, Key("acme", f"s{n:02}"), b"%d.%d" % (n, turn), cold=(b"%d" % turn,))

    await asyncio.gather(*map(live, range(50)))
    for n in (0, 17, 49):
        key = Key("acme", f"s{n:02}")
        assert (await read(store, key)).blob == b"%d.3" % n
        assert await store.cold(key) == [b"0", b"1", b"2", b"3"]
    assert len(await store.list("acme")) == 50


async def test_a_caller_who_leaves_stops_no_write(store: Store):
    await store.ping()
    writing = asyncio.ensure_future(store.write(KEY, BlobWrite(b"1", version=0, ttl=60)))
    await asyncio.sleep(0)
    writing.cancel()
    version = (await soon(store)).version
    assert await store.write(KEY, BlobWrite(b"2", version=version, ttl=60))


# --- the cold part


async def test_the_cold_part_grows_at_its_end(store: Store):
    await put(store, cold=(b"a", b"b"))
    await put(store)
    await put(store, cold=(b"c",))
    assert await store.cold(KEY) == [b"a", b"b", b"c"]


async def test_the_cold_part_is_read_in_pages(store: Store):
    entries = [b"%d" % n for n in range(25)]
    await put(store, cold=tuple(entries[:20]))
    await put(store, cold=tuple(entries[20:]))
    assert await store.cold(KEY, limit=10) == entries[:10]
    assert await store.cold(KEY, start=18, limit=4) == entries[18:22]
    assert await store.cold(KEY, start=24) == entries[24:]
    assert await store.cold(KEY, start=25) == []


# --- both parts at once


async def test_a_session_is_replaced_whole(store: Store):
    version = await put(store, cold=(b"a", b"b", b"c"))
    assert await store.replace(KEY, BlobWrite(b"2", version=version, ttl=60, cold=[b"x", b"y"]))
    held = await read(store)
    assert held.blob == b"2"
    assert held.version != version
    assert await store.cold(KEY) == [b"x", b"y"]
    assert await store.write(KEY, BlobWrite(b"3", version=held.version, ttl=60, cold=[b"z"]))
    assert await store.cold(KEY) == [b"x", b"y", b"z"]
    assert await store.cold(KEY, start=2) == [b"z"]


async def test_a_cold_part_is_replaced_by_none(store: Store):
    version = await put(store, cold=(b"a", b"b"))
    assert await store.replace(KEY, BlobWrite(b"2", version=version, ttl=60, cold=()))
    assert await store.cold(KEY) == []
    await put(store, cold=(b"c",))
    assert await store.cold(KEY) == [b"c"]


async def test_a_replacement_that_lost_changes_nothing(store: Store):
    version = await put(store, blob=b"kept", cold=(b"c",))
    for other in (0, version + 1):
        assert not await store.replace(KEY, BlobWrite(b"lost", version=other, ttl=60, cold=[b"lost"]))
    assert await store.read(KEY) == StoredBlob(b"kept", version)
    assert await store.cold(KEY) == [b"c"]


async def test_what_is_not_there_is_made_by_a_replacement(store: Store):
    assert not await store.replace(KEY, BlobWrite(b"x", version=7, ttl=60, cold=[b"c"]))
    assert await store.read(KEY) is None
    assert await store.replace(KEY, BlobWrite(b"1", version=0, ttl=60, cold=[b"c"]))
    assert (await read(store)).blob == b"1"
    assert await store.cold(KEY) == [b"c"]


@pytest.mark.parametrize("other", ["write", "replace"])
async def test_of_a_replacement_and_another_writer_one_wins(store: Store, other: str):
    version = await put(store, cold=(b"a",))
    replacing = store.replace(KEY, BlobWrite(b"whole", version=version, ttl=60, cold=[b"x"]))
    writing = getattr(store, other)(KEY, BlobWrite(b"more", version=version, ttl=60, cold=[b"b"]))
    won = await asyncio.gather(replacing, writing)
    assert sorted(won) == [False, True]
    parts = (await read(store)).blob, await store.cold(KEY)
    assert parts == (
        (b"whole", [b"x"]) if won[0] else (b"more", [b"a", b"b"] if other == "write" else [b"b"])
    )


async def test_what_others_hold_is_left_alone_by_a_replacement(store: Store):
    other = Key("acme", "call-2")
    version = await put(store, cold=(b"a",))
    await put(store, other, cold=(b"other",))
    assert await store.replace(KEY, BlobWrite(b"2", version=version, ttl=60, cold=[]))
    assert await store.cold(other) == [b"other"]


async def test_whoever_reads_during_a_replacement_sees_one_whole(store: Store):
    await put(store, blob=b"0", cold=(b"0",) * 3)

    async def replace() -> None:
        for n in range(1, 20):
            blob, version = b"%d" % n, (await read(store)).version
            assert await store.replace(KEY, BlobWrite(blob, version=version, ttl=60, cold=[blob] * (n % 5)))

    replacing = asyncio.ensure_future(replace())
    while not replacing.done():
        assert len(set(await store.cold(KEY))) <= 1
        await asyncio.sleep(0)
    await replacing


# --- expiry


async def expires(store: Store, key: Key) -> None:
    version = await put(store, key, ttl=2, cold=(b"old",))
    await gone(store, key)
    assert await store.cold(key) == []
    assert not await is_listed(store, key)
    assert await store.delete(key) is False
    assert not await store.write(key, BlobWrite(b"x", version=version, ttl=60))


async def begins_anew(store: Store, key: Key) -> None:
    await put(store, key, ttl=2, cold=(b"old",))
    await gone(store, key)
    assert await store.write(key, BlobWrite(b"new", version=0, ttl=60, cold=[b"fresh"]))
    assert (await read(store, key)).blob == b"new"
    assert await store.cold(key) == [b"fresh"]


async def is_not_replaced(store: Store, key: Key) -> None:
    version = await put(store, key, ttl=2, cold=(b"old",))
    await gone(store, key)
    assert not await store.replace(key, BlobWrite(b"x", version=version, ttl=60, cold=[]))
    assert await store.replace(key, BlobWrite(b"1", version=0, ttl=60, cold=[b"c"]))
    assert await store.cold(key) == [b"c"]


async def no_turn_leaves_the_expiry(store: Store, key: Key, way: str) -> None:
    version = await put(store, key, ttl=2, cold=(b"a",))
    assert await getattr(store, way)(key, BlobWrite(b"2", version=version, ttl=KEEP_EXPIRY, cold=[b"b"]))
    held = await read(store, key)
    assert held.blob == b"2"
    assert await store.cold(key) == ([b"a", b"b"] if way == "write" else [b"b"])
    assert await is_listed(store, key)
    await gone(store, key)
    assert await store.cold(key) == [] and not await is_listed(store, key)
    assert not await store.write(key, BlobWrite(b"x", version=held.version, ttl=60))
    assert await store.write(key, BlobWrite(b"new", version=0, ttl=60))
    assert await store.cold(key) == []


async def a_cold_part_that_no_turn_began_goes_too(store: Store, key: Key) -> None:
    version = await put(store, key, ttl=2)
    assert await store.write(key, BlobWrite(b"2", version=version, ttl=KEEP_EXPIRY, cold=[b"a"]))
    assert await store.cold(key) == [b"a"]
    await gone(store, key)
    assert await store.write(key, BlobWrite(b"new", version=0, ttl=60))
    assert await store.cold(key) == []


async def a_turn_renews_it(store: Store, key: Key) -> None:
    version = await put(store, key, ttl=2)
    assert await store.write(key, BlobWrite(b"2", version=version, ttl=KEEP_EXPIRY))
    assert await store.write(key, BlobWrite(b"3", version=(await read(store, key)).version, ttl=60))
    version = (await read(store, key)).version
    assert await store.write(key, BlobWrite(b"4", version=version, ttl=KEEP_EXPIRY))
    await asyncio.sleep(2.2)
    assert (await read(store, key)).blob == b"4"


async def a_write_renews_that_of_both_parts(store: Store, key: Key) -> None:
    await put(store, key, ttl=2, cold=(b"c",))
    await put(store, key, ttl=60)
    await asyncio.sleep(2.2)
    assert await store.read(key)
    assert await store.cold(key) == [b"c"]


async def a_replacement_renews_that_of_both_parts(store: Store, key: Key) -> None:
    version = await put(store, key, ttl=2, cold=(b"c",))
    assert await store.replace(key, BlobWrite(b"2", version=version, ttl=60, cold=[b"x"]))
    await asyncio.sleep(2.2)
    assert await store.read(key)
    assert await store.cold(key) == [b"x"]


EXPIRING = (
    expires,
    begins_anew,
    is_not_replaced,
    partial(no_turn_leaves_the_expiry, way="write"),
    partial(no_turn_leaves_the_expiry, way="replace"),
    a_cold_part_that_no_turn_began_goes_too,
    a_turn_renews_it,
    a_write_renews_that_of_both_parts,
    a_replacement_renews_that_of_both_parts,
)


async def test_sessions_expire(store: Store):
    """Each case has a session of its own, so that all of them wait for the same two seconds."""
    async with asyncio.TaskGroup() as cases:
        for number, case in enumerate(EXPIRING):
            cases.create_task(case(store, Key("acme", f"case {number}")))


async def is_listed(store: Store, key: Key) -> bool:
    return key.session in {line.session for line in await store.list(key.tenant)}


async def test_a_write_that_lost_leaves_the_expiry_as_it_is(store: Store):
    version = await put(store, ttl=60)
    assert not await store.write(KEY, BlobWrite(b"lost", version=version + 1, ttl=KEEP_EXPIRY))
    assert not await store.write(Key("acme", "none"), BlobWrite(b"lost", version=7, ttl=KEEP_EXPIRY))
    assert (await read(store)).version == version


async def test_reading_renews_nothing(store: Store):
    await put(store, ttl=0.4)
    for _ in range(5):
        await asyncio.sleep(0.1)
        await store.read(KEY)
    assert await store.read(KEY) is None


# --- deleting and listing


async def test_deleting_removes_both_parts(store: Store):
    await put(store, cold=(b"c",))
    assert await store.delete(KEY) is True
    assert await store.read(KEY) is None
    assert await store.cold(KEY) == []
    assert await store.delete(KEY) is False
    await put(store)
    assert await store.cold(KEY) == []


async def deleted(store: Store) -> tuple[float, float]:
    """Deletes; a time before that, and one after."""
    before = time.time()
    await asyncio.sleep(0.02)
    await store.delete(KEY)
    await asyncio.sleep(0.02)
    return before, time.time()


async def test_a_write_that_is_refused_is_not_read_meanwhile(store: Store):
    version = await put(store)
    before, _ = await deleted(store)
    late = BlobWrite(b"what was forgotten", version=version, ttl=60, at=before)
    writing = asyncio.ensure_future(store.write(KEY, late))
    while not writing.done():
        assert await store.read(KEY) is None
        await asyncio.sleep(0)
    with pytest.raises(SessionDeleted):
        writing.result()


async def refused(store: Store, version: int, at: float) -> None:
    held, cold = await store.read(KEY), await store.cold(KEY)
    with pytest.raises(SessionDeleted):
        await store.write(KEY, BlobWrite(b"late", version=version, ttl=60, cold=[b"late"], at=at))
    assert await store.read(KEY) == held
    assert await store.cold(KEY) == cold


@pytest.mark.parametrize("there", [True, False])
async def test_what_arrived_before_a_deletion_is_refused(store: Store, there: bool):
    if there:
        await put(store, cold=(b"c",))
    before, after = await deleted(store)
    await refused(store, 0, before)
    assert await store.list("acme") == []
    assert await store.write(KEY, BlobWrite(b"new", version=0, ttl=60, cold=[b"n"], at=after))
    assert await store.cold(KEY) == [b"n"]
    await refused(store, (await read(store)).version, before)
    version = (await read(store)).version
    assert await store.write(KEY, BlobWrite(b"newer", version=version, ttl=60, at=after))


async def test_a_deletion_outlives_what_comes_after_it(store: Store, driver: str):
    before, after = await deleted(store)
    assert await store.write(KEY, BlobWrite(b"new", version=0, ttl=0.1, at=after, cold=[b"n"]))
    await asyncio.sleep(0.2)
    assert await store.read(KEY) is None
    if not driver.startswith("redis"):  # where it expires with the session
        await refused(store, 0, before)
    assert await store.write(KEY, BlobWrite(b"anew", version=0, ttl=60, at=after, cold=[b"a"]))
    assert await store.cold(KEY) == [b"a"]


async def test_a_deletion_is_remembered_whatever_is_written_after_it(store: Store):
    await put(store)
    assert await store.deleted(KEY) is None
    before, after = await deleted(store)
    assert before <= (await store.deleted(KEY) or 0) <= after
    await put(store)
    assert before <= (await store.deleted(KEY) or 0) <= after
    assert await store.deleted(Key("other", KEY.session)) is None


async def test_what_names_no_time_is_written_after_a_deletion(store: Store):
    version = await put(store, cold=(b"c",))
    await store.delete(KEY)
    assert not await store.write(KEY, BlobWrite(b"x", version=version, ttl=60))
    assert await store.write(KEY, BlobWrite(b"new", version=0, ttl=60))
    assert (await read(store)).blob == b"new"
    await store.delete(KEY)
    assert await store.replace(KEY, BlobWrite(b"imported", version=0, ttl=60, cold=[b"x"]))
    assert await store.cold(KEY) == [b"x"]


async def test_a_deletion_is_seen_by_every_process(reopen: Open, driver: str):
    if driver in FORGETFUL:
        pytest.skip("two of these share nothing")
    one, other = reopen(), reopen()
    version = await put(one)
    assert await read(other)
    before, _ = await deleted(other)
    assert not await one.write(KEY, BlobWrite(b"late", version=version, ttl=60))
    await refused(one, 0, before)
    await refused(reopen(), 0, before)


async def test_of_a_deletion_and_a_late_turn_the_deletion_wins(reopen: Open, driver: str):
    one, other = (reopen(), None) if driver in FORGETFUL else (reopen(), reopen())
    await put(one, Key("acme", "warm"))
    await (other or one).read(KEY)
    for n in range(20):
        key = Key("acme", f"s{n}")
        at = time.time()
        await asyncio.sleep(0.002)
        outcomes = await asyncio.gather(
            one.write(key, BlobWrite(b"late", version=0, ttl=60, at=at)),
            (other or one).delete(key),
            return_exceptions=True,
        )
        assert outcomes[0] is True or isinstance(outcomes[0], SessionDeleted)
        assert await one.read(key) is None


STEPS = st.lists(st.sampled_from(["delete", "write", "late", "replace"]), max_size=8)


@FEW
@given(steps=STEPS)
async def test_no_turn_comes_back_after_a_deletion(store: Store, steps: list[str]):
    await nothing_comes_back(store, steps)


@pytest.mark.long
@pytest.mark.timeout(1800)
@MANY
@given(steps=STEPS)
async def test_no_turn_comes_back_after_a_deletion_at_length(store: Store, steps: list[str]):
    await nothing_comes_back(store, steps)


async def nothing_comes_back(store, steps):
    key = Key("acme", uuid.uuid4().hex)
    start, held, gone = time.time(), False, False
    await asyncio.sleep(0.001)
    for step in steps:
        before = await store.read(key)
        version = before.version if before else 0
        if step == "delete":
            assert await store.delete(key) == held
            held, gone = False, True
        elif step == "replace":
            assert await store.replace(key, BlobWrite(b"r", version=version, ttl=60, cold=[b"c"]))
            held = True
        elif step == "write" or not gone:
            await asyncio.sleep(0.001)
            assert await store.write(key, BlobWrite(b"w", version=version, ttl=60, at=time.time()))
            held = True
        else:
            with pytest.raises(SessionDeleted):
                await store.write(key, BlobWrite(b"l", version=version, ttl=60, at=start))
        assert (await store.read(key) is not None) == held


async def test_sessions_are_listed_in_pages(store: Store, driver: str):
    names = [f"s{n}" for n in (3, 1, 20, 2, 10)]
    for name in names:
        await put(store, Key("acme", name), name.encode())
    first = await store.list("acme", limit=2)
    rest = await store.list("acme", after=first[-1].session)
    assert await store.list("acme", after=rest[-1].session) == []
    listed = [line.session for line in (*first, *rest)]
    assert (len(first), len(rest)) == (2, 3)
    assert in_order(listed, driver) == ["s1", "s10", "s2", "s20", "s3"]
    sealed = 36 if driver in SEALED else 0
    assert [line.size for line in first] == [len(line.session) + sealed for line in first]
    assert all(line.updated > 1_700_000_000 for line in first)


def in_order(listed: list[str], driver: str) -> list[str]:
    """Ids as they were listed; those that are encrypted have an order of their own."""
    return sorted(listed) if driver in SEALED else listed


async def test_a_list_says_when_a_session_was_written_last(store: Store):
    await put(store, ttl=60)
    (first,) = await store.list(KEY.tenant)
    await asyncio.sleep(0.05)
    await put(store, ttl=60)
    (second,) = await store.list(KEY.tenant)
    assert await store.delete(KEY)
    await asyncio.sleep(0.05)
    await put(store, ttl=60)
    (third,) = await store.list(KEY.tenant)
    assert first.updated < second.updated < third.updated


async def test_what_is_being_written_is_listed(store: Store):
    writing = asyncio.ensure_future(store.write(KEY, BlobWrite(b"1", version=0, ttl=60, cold=[b"c"])))
    await soon(store)
    assert [line.session for line in await store.list("acme")] == ["call-1"]
    assert await store.cold(KEY) == [b"c"]
    assert await writing


async def test_ids_sort_by_code_points(store: Store, driver: str):
    await asyncio.gather(*[put(store, Key("acme", name)) for name in HOSTILE])
    listed = [line.session for line in await store.list("acme")]
    assert in_order(listed, driver) == sorted(set(HOSTILE))


# --- tenants


TWO = st.lists(IDS, min_size=2, max_size=2, unique=True)


@FEW
@given(tenants=TWO, ids=TWO)
async def test_no_id_reaches_another_tenant_or_session(store: Store, tenants: list[str], ids: list[str]):
    await each_stays_apart(store, tenants, ids)


@pytest.mark.long
@pytest.mark.timeout(1800)
@MANY
@given(tenants=TWO, ids=TWO)
async def test_no_id_reaches_another_at_length(store: Store, tenants: list[str], ids: list[str]):
    await each_stays_apart(store, tenants, ids)


async def each_stays_apart(store, tenants, ids):
    keys = [Key(tenant, name) for tenant in tenants for name in ids]
    await asyncio.gather(*[put(store, key, repr(key).encode(), cold=(repr(key).encode(),)) for key in keys])
    for key in keys:
        assert (await read(store, key)).blob == repr(key).encode()
        assert await store.cold(key) == [repr(key).encode()]
    assert sorted(line.session for line in await store.list(tenants[0])) == sorted(ids)
    gone, *left = keys
    assert await store.delete(gone)
    assert [await store.read(key) is None for key in keys] == [True, False, False, False]
    await asyncio.gather(*map(store.delete, left))


# --- the store itself


async def test_what_was_written_outlives_the_process(reopen: Open, driver: str):
    if driver in FORGETFUL:
        pytest.skip("forgets on purpose")
    first = reopen()
    version = await put(first, blob=b"kept", cold=(b"c",))
    await first.aclose()
    again = reopen()
    assert await again.read(KEY) == StoredBlob(b"kept", version)
    assert await again.cold(KEY) == [b"c"]
    assert await again.write(KEY, BlobWrite(b"2", version=version, ttl=60))


async def test_closing_waits_for_what_was_accepted(reopen: Open, driver: str):
    if driver in FORGETFUL:
        pytest.skip("forgets on purpose")
    first = reopen()
    await first.ping()
    keys = [Key("acme", f"s{n:02}") for n in range(20)]
    writing = [asyncio.ensure_future(first.write(key, BlobWrite(b"1", version=0, ttl=60))) for key in keys]
    await asyncio.sleep(0.01)
    await first.aclose()
    accepted = [
        key
        for key, outcome in zip(keys, await asyncio.gather(*writing, return_exceptions=True), strict=True)
        if outcome is True
    ]
    assert accepted
    there = {line.session for line in await reopen().list("acme")}
    assert {key.session for key in accepted} <= there


# --- background work that is due


async def taken(store: Store, *, limit: int = 10, lease: float = 60) -> list[DueSession]:
    """What is due by now, once every part of the index was looked into."""
    found: list[DueSession] = []
    for _ in range(20):
        found += await store.take_due(["acme"], limit=limit, lease=lease)
    return found


async def due(store: Store, count: int = 1, *, lease: float = 60) -> list[DueSession]:
    """So many sessions, once they are due: that may take a moment."""
    found: list[DueSession] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            found += await store.take_due(["acme"], limit=count, lease=lease)
            await asyncio.sleep(0.01)
    assert len(found) == count
    return found


async def schedule(store: Store, at: float, key: Key = KEY) -> None:
    """Writes a session that is due at a time."""
    stored = await store.read(key)
    assert await store.write(key, BlobWrite(b"1", stored.version if stored else 0, ttl=60, due=at))


async def test_a_session_without_work_is_never_due(store: Store):
    await put(store)
    await schedule(store, time.time() + 60, Key("acme", "later"))
    await asyncio.sleep(1.2)
    assert await taken(store) == []


@pytest.mark.parametrize("way", ["write", "replace"])
async def test_a_session_is_taken_once_its_work_is_due(store: Store, way: str):
    at = time.time() + 1.5
    assert await getattr(store, way)(KEY, BlobWrite(b"1", version=0, ttl=60, due=at))
    assert await taken(store) == []
    assert [each.key for each in await due(store)] == [KEY]
    assert time.time() > at - 0.1
    assert await taken(store) == []
    assert await read(store) == await read(store), "taking it does not touch it"


async def test_each_of_many_sessions_is_taken_by_one_worker(reopen: Open, driver: str):
    one = reopen()
    other = one if driver in FORGETFUL else reopen()
    keys = [Key("acme", f"s{n}") for n in range(60)]
    await asyncio.gather(*(schedule(one, time.time(), key) for key in keys))
    found: list[Key] = []
    async with asyncio.timeout(10):
        while len(found) < len(keys):
            pages = await asyncio.gather(
                *(store.take_due(["acme"], limit=7, lease=60) for store in (one, other))
            )
            assert all(len(page) <= 7 for page in pages)
            found += [each.key for page in pages for each in page]
    assert sorted(found) == sorted(keys)


async def test_what_a_worker_took_and_left_is_due_again_after_its_lease(store: Store):
    await schedule(store, time.time())
    await due(store, lease=0.5)
    assert await taken(store) == []
    assert [each.key for each in await due(store)] == [KEY]


async def test_what_is_settled_is_due_when_that_says(store: Store):
    await schedule(store, time.time())
    (first,) = await due(store, lease=0.5)
    assert await store.settle(first, time.time() + 1.5)
    assert await store.settle(first, NEVER_DUE) is None
    await asyncio.sleep(0.7)
    assert await taken(store) == []
    (second,) = await due(store, lease=0.5)
    assert await store.settle(second, NEVER_DUE)
    await asyncio.sleep(0.7)
    assert await taken(store) == []


async def test_what_was_settled_is_given_back_before_its_time(store: Store):
    await schedule(store, time.time())
    (first,) = await due(store)
    settled = await store.settle(first, time.time() + 30)
    assert settled
    assert await store.settle(settled, time.time())
    assert [each.key for each in await due(store)] == [KEY]


@pytest.mark.parametrize("wait", [0.2, 1.0], ids=["sooner than the lease", "later than the lease"])
async def test_a_worker_settles_nothing_that_was_written_since(store: Store, wait: float):
    await schedule(store, time.time())
    (first,) = await due(store, lease=0.5)
    await schedule(store, time.time() + wait)
    assert await store.settle(first, NEVER_DUE) is None
    assert [each.key for each in await due(store)] == [KEY]


async def test_a_worker_settles_nothing_that_another_took_since(store: Store):
    await schedule(store, time.time())
    (first,) = await due(store, lease=0.2)
    await due(store, lease=0.5)
    assert await store.settle(first, NEVER_DUE) is None
    assert [each.key for each in await due(store)] == [KEY]


async def test_work_that_another_process_did_early_is_due_again_after_the_next_write(
    reopen: Open, driver: str
):
    one = reopen()
    other = one if driver in FORGETFUL else reopen()
    await schedule(one, time.time() + 2.0)
    await schedule(other, time.time())
    (first,) = await due(other, lease=5)
    version = (await read(other)).version
    await other.settle(first, NEVER_DUE)
    assert await other.write(KEY, BlobWrite(b"done", version, ttl=60))
    await schedule(one, time.time() + 2.2)
    assert [each.key for each in await due(one)] == [KEY]


async def test_a_deleted_session_is_due_at_most_once_more(store: Store):
    await schedule(store, time.time() + 0.2)
    await store.delete(KEY)
    await asyncio.sleep(0.7)
    for each in await taken(store):
        assert await store.read(each.key) is None
        await store.settle(each, NEVER_DUE)
    assert await taken(store, lease=0.1) == []


@FEW
@given(key=st.builds(Key, IDS, IDS))
async def test_any_session_is_taken_under_its_name(store: Store, key: Key):
    await schedule(store, time.time(), key)
    (first,) = await due(store)
    assert first.key == key
    await store.settle(first, NEVER_DUE)
    await store.delete(key)


# --- leases


async def test_a_lease_has_one_holder_until_it_ends(store: Store):
    assert await store.acquire("work", b"one", ttl=60) is None
    assert await store.acquire("work", b"two", ttl=60) == b"one"
    assert await store.acquire("other work", b"two", ttl=60) is None
    assert await store.acquire("work", b"one", ttl=60) is None, "renewed"
    await store.release("work", b"two")
    assert await store.acquire("work", b"two", ttl=60) == b"one"
    await store.release("work", b"one")
    assert await store.acquire("work", b"two", ttl=60) is None


async def test_a_lease_expires_and_may_be_taken_over(store: Store):
    assert await store.acquire("work", b"one", ttl=0.5) is None
    assert await store.acquire("work", b"two", ttl=60, former=b"three") == b"one"
    assert await store.acquire("work", b"two", ttl=0.5, former=b"one") is None
    assert await store.acquire("work", b"one", ttl=60) == b"two"
    await asyncio.sleep(0.7)
    assert await store.acquire("work", b"one", ttl=60) is None


async def test_of_two_who_want_a_lease_one_has_it(store: Store):
    tokens = [b"%d" % n for n in range(8)]
    holders = await asyncio.gather(*(store.acquire("work", token, ttl=60) for token in tokens))
    assert holders.count(None) == 1
    assert {*holders} - {None} == {tokens[holders.index(None)]}


async def test_a_closed_store_says_so(store: Store, driver: str):
    if driver in FORGETFUL:
        pytest.skip("has nothing to close")
    await store.ping()
    await store.aclose()
    await store.aclose()
    for use in (
        store.read(KEY),
        store.write(KEY, BlobWrite(b"1", version=0, ttl=60)),
        store.list("acme"),
        store.ping(),
    ):
        with pytest.raises(StoreError, match="closed"):
            await use


async def test_a_store_that_was_never_used_closes(store: Store):
    await store.aclose()


async def test_ping_returns_where_a_turn_could_be_written(store: Store):
    await store.ping()
