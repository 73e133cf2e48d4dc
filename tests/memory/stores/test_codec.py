import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.memory.errors import StoreError
from proxy.memory.stores.codec import ENCRYPTED, Plain
from proxy.memory.stores.encryption import Encryption
from proxy.memory.stores.store import Key

OLD, NEW, OTHER = bytes(range(32)), bytes(range(32, 64)), bytes(range(64, 96))
KEY = Key("acme", "call-1")
TEXTS = st.text(st.characters(codec=None), max_size=8)
KEYS = st.builds(Key, TEXTS, TEXTS)
MARKS = st.sampled_from([b"\xc1TK0", b"\xc1TK1"])
BLOBS = st.binary(max_size=40) | st.builds(bytes.__add__, MARKS, st.binary(max_size=5))


@given(key=KEYS, blob=BLOBS)
@pytest.mark.parametrize("codec", [Plain(), Encryption([NEW, OLD])], ids=["identity", "encryption"])
def test_what_was_encoded_is_decoded(codec, key: Key, blob: bytes):
    assert codec.decode(key, codec.encode(key, blob)) == blob


@given(key=KEYS, blob=BLOBS)
def test_what_was_written_plainly_is_read_when_encryption_is_on(key: Key, blob: bytes):
    assert Encryption([NEW]).decode(key, Plain().encode(key, blob)) == blob


def test_ordinary_bytes_are_kept_as_they_are():
    assert Plain().encode(KEY, b"\x80") == b"\x80"


def test_what_is_encrypted_shows_nothing_and_never_twice_the_same():
    one, two = (Encryption([NEW]).encode(KEY, b"my secret is 4711") for _ in range(2))
    assert one != two
    assert b"4711" not in one
    assert one.startswith(ENCRYPTED)
    assert len(one) == len(b"my secret is 4711") + 36


def test_keys_are_changed_while_sessions_live():
    before = Encryption([OLD]).encode(KEY, b"x")
    during = Encryption([NEW, OLD])
    assert during.decode(KEY, before) == b"x"
    after = during.encode(KEY, b"y")
    assert Encryption([NEW]).decode(KEY, after) == b"y"
    with pytest.raises(StoreError, match="not configured here"):
        Encryption([NEW]).decode(KEY, before)


@given(one=KEYS, other=KEYS)
def test_a_blob_cannot_be_moved_to_another_session(one: Key, other: Key):
    blob = Encryption([NEW]).encode(one, b"x")
    if one == other:
        assert Encryption([NEW]).decode(other, blob) == b"x"
    else:
        with pytest.raises(StoreError, match="another session"):
            Encryption([NEW]).decode(other, blob)


def test_where_the_tenant_ends_cannot_be_mistaken():
    blob = Encryption([NEW]).encode(Key("ab", "c"), b"x")
    with pytest.raises(StoreError, match="another session"):
        Encryption([NEW]).decode(Key("a", "bc"), blob)


@given(st.data())
def test_a_blob_that_was_altered_or_cut_is_refused(data: st.DataObject):
    blob = Encryption([NEW]).encode(KEY, b"hello")
    at = data.draw(st.integers(len(ENCRYPTED), len(blob) - 1))
    altered = blob[:at] + bytes([blob[at] ^ data.draw(st.integers(1, 255))]) + blob[at + 1 :]
    for wrong in (altered, blob[:at]):
        with pytest.raises(StoreError):
            Encryption([NEW]).decode(KEY, wrong)


def test_encryption_that_was_switched_off_is_named():
    with pytest.raises(StoreError, match="no encryption key is configured"):
        Plain().decode(KEY, Encryption([NEW]).encode(KEY, b"x"))


def test_no_error_shows_a_key_or_what_was_encrypted():
    blob = Encryption([NEW]).encode(KEY, b"4711")
    for codec in (Encryption([OTHER]), Plain()):
        with pytest.raises(StoreError) as raised:
            codec.decode(KEY, blob)
        assert not {"4711", NEW.hex(), OTHER.hex()} & set(str(raised.value).split())


def test_keys_are_written_in_base64_newest_first():
    newest, older = (
        "ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=",
        "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
    )
    codec = Encryption.parse(f"{newest}, {older}")
    assert Encryption([NEW]).decode(KEY, codec.encode(KEY, b"x")) == b"x"
    assert codec.decode(KEY, Encryption([OLD]).encode(KEY, b"x")) == b"x"


@pytest.mark.parametrize("text", ["", "s3cret", "AAECAw==", "AAECAw==,", "ü" * 44])
def test_a_faulty_key_is_not_repeated(text: str):
    with pytest.raises(ValueError, match="32 bytes") as raised:
        Encryption.parse(text)
    assert not text or text not in str(raised.value)
