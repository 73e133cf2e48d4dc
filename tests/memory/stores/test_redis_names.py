"""Two sessions never share a key, whatever they are called."""

from hypothesis import example, given
from hypothesis import strategies as st
from redis.crc import key_slot

from proxy.memory.stores.redis import KeyNames, member
from proxy.memory.stores.store import Key

NAMES = KeyNames("turnkeeper:")
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


@given(keys, hostile)
def test_a_session_shares_no_key_with_an_index_nor_with_a_trial(key: Key, tenant: str):
    assert not set(NAMES.session(key)) & {*NAMES.index(tenant), *NAMES.ping("trial-0123")}
    assert not set(NAMES.index(tenant)) & set(NAMES.ping("trial-0123"))


@given(keys)
def test_the_parts_of_a_session_stand_in_one_slot(key: Key):
    hot, cold = NAMES.session(key)
    assert slot(hot) == slot(cold)
    assert slot(NAMES.index(key.tenant).first) == slot(NAMES.index(key.tenant).second)


@given(keys)
def test_a_key_can_be_read_on_any_terminal(key: Key):
    assert all(name.isascii() and name.isprintable() for name in NAMES.session(key))


@given(st.lists(hostile))
def test_members_stand_in_the_order_of_their_ids(ids: list[str]):
    assert sorted(ids, key=member) == sorted(ids)
