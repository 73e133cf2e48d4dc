"""Two sessions never share a key, whatever they are called."""

from hypothesis import example, given
from hypothesis import strategies as st
from redis.crc import key_slot

from proxy.memory.stores.redis import KeyNames, key_of, member, place_of
from proxy.memory.stores.store import Key

NAMES = KeyNames("turnkeeper:")
SPREAD = KeyNames("turnkeeper:", spread=True)
hostile = st.text(st.one_of(st.sampled_from("{}:%\0 ;*é\ud800"), st.characters()), max_size=12)
keys = st.builds(Key, hostile, hostile)


def slot(name: str) -> int:
    return key_slot(name.encode())


@given(keys, keys)
@example(Key("a:b", "c"), Key("a", "b:c"))
@example(Key("a}", "{b"), Key("a", "b"))
@example(Key("%3A", ""), Key(":", ""))
def test_two_sessions_share_no_key(one: Key, other: Key):
    shared = set(NAMES.session(one)) & set(NAMES.session(other))
    assert bool(shared) == (one == other)


@given(keys, keys)
@example(Key("t", "s"), Key(":0", "s"))
@example(Key("=:0", "ids"), Key("@0", "work"))
def test_a_session_shares_no_key_with_what_is_beside_sessions(key: Key, other: Key):
    beside = [*SPREAD.due, NAMES.lease(other.session)]
    beside += [name for pair in (*SPREAD.indexes, NAMES.former_index(other.tenant)) for name in pair]
    assert len({*NAMES.session(key), *beside}) == 2 + len({*beside})
    assert len({*beside}) == len(beside)


@given(keys)
def test_the_parts_of_a_session_stand_in_one_slot(key: Key):
    for one, other in (NAMES.session(key), SPREAD.index(place_of(key)), NAMES.former_index(key.tenant)):
        assert slot(one) == slot(other)


def test_buckets_are_spread_evenly_over_the_slots():
    for names in ([index.first for index in SPREAD.indexes], SPREAD.due):
        parts = [slot(name) * len(names) // 16384 for name in names]
        assert parts == [*range(len(names))]


@given(keys)
def test_a_place_names_its_session(key: Key):
    assert key_of(place_of(key)) == key


@given(keys)
def test_a_key_can_be_read_on_any_terminal(key: Key):
    assert all(name.isascii() and name.isprintable() for name in NAMES.session(key))


@given(st.lists(hostile))
def test_members_stand_in_the_order_of_their_ids(ids: list[str]):
    assert sorted(ids, key=member) == sorted(ids)
