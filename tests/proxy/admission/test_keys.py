"""API keys, and the signatures of webhook events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.admission.gate import Keys, Webhook

SECRETS = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=",:"), min_size=1)
# Agora's published example: https://docs.agora.io/cn/Video/signature_verify
BODY = (
    b'{"eventType":10,"noticeId":"4eb720f0-8da7-11e9-a43e-53f411c2761f","notifyMs":1560408533119,'
    b'"payload":{"a":"1","b":2},"productId":1}'
)
OLDER = {"agora-signature": "5a3bb6a6d9fad2ea9ae3fb707a14c9d7f3136df1"}
NEWER = {"agora-signature-v2": "de96da5acf03b0021ac3b4fa2225e7ae6f3533a30d50bb02c08ea4fa748bda24"}
WEBHOOK = Webhook(b"secret", "default")


def test_a_key_opens_its_tenant():
    keys = Keys.parse("alice:one, bob:two:chat,alice:three")
    found = [keys.find(secret) for secret in ("one", "two", "three")]
    assert [(key.tenant, key.scope) for key in found] == [("alice", "all"), ("bob", "chat"), ("alice", "all")]


@pytest.mark.parametrize("text", ["a:x,b:y,", "a:x, b:y, ", ",a:x,b:y", "a:x,,b:y", "a:x, ,\n b:y,\n"])
def test_commas_too_many_are_no_keys(text):
    assert Keys.parse(text) == Keys.parse("a:x,b:y")


@pytest.mark.parametrize("bearer", ["", "on", "onee", "alice", "alice:one", "ONE", "öne", "\ud800"])
def test_no_other_secret_opens_anything(bearer):
    assert Keys.parse("alice:one").find(bearer) is None


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer one"},
        {"authorization": "bearer  one "},
        {"api-key": "one"},
        {"authorization": "Basic b25l", "api-key": "one"},
    ],
)
def test_a_request_shows_its_key_in_either_header(headers):
    assert Keys.parse("alice:one").match(headers).tenant == "alice"


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "one"}, {"x-api-key": "one"}, {"authorization": "Bearer", "api-key": "one"}],
)
def test_a_request_that_shows_none_has_none(headers):
    assert Keys.parse("alice:one").match(headers) is None


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_an_empty_text_means_no_keys(text):
    keys = Keys.parse(text)
    assert not keys
    assert keys.find("") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("s3cret", "key 1: write name:secret"),
        ("a:b,s3cret", "key 2: write name:secret"),
        (",a:b,,s3cret", "key 2: write name:secret"),
        (",", "there are commas, but no key"),
        (" , ,", "there are commas, but no key"),
        (":s3cret", "key 1: write name:secret"),
        ("a:", "key 1: write name:secret"),
        ("a b:s3cret", "key 1: write name:secret"),
        (f"{'n' * 65}:s3cret", "key 1: write name:secret"),
        ("a:s3cret:admin", "key 1: after a second ':'"),
        ("a:s3cret:all", "key 1: after a second ':'"),
        ("a:s3cret:chat:x", "key 1: after a second ':'"),
        ("a:s3c ret", "key 1: a secret must not contain spaces"),
        ("a:s3crét", "key 1: a secret must not contain spaces"),
        ("a:s3cret,b:x,c:s3cret", "keys 1 and 3 have the same secret"),
    ],
)
def test_a_wrong_entry_is_told_by_its_number_and_never_shown(text, said):
    with pytest.raises(ValueError) as caught:
        Keys.parse(text)
    assert str(caught.value).startswith(said)
    assert not any(part in str(caught.value) for part in ("s3c", "crét", "admin"))


@given(SECRETS)
def test_a_secret_opens_its_key_and_is_not_kept(secret):
    keys = Keys.parse(f"alice:{secret}")
    assert keys.find(secret).tenant == "alice"
    assert keys.find(secret + "x") is None
    assert keys.entries[0].digest != secret.encode()
    assert repr(keys) == "Keys(entries=(ApiKey('alice', scope='all'),))"


@pytest.mark.parametrize("headers", [OLDER, NEWER, OLDER | NEWER])
def test_agoras_published_example_is_believed(headers):
    assert WEBHOOK.verify(headers, BODY)


@pytest.mark.parametrize("headers", [OLDER, NEWER])
def test_hexadecimal_digits_may_be_large_and_have_spaces_around_them(headers):
    assert WEBHOOK.verify({name: f" {digits.upper()} " for name, digits in headers.items()}, BODY)


@pytest.mark.parametrize("headers", [OLDER, NEWER, OLDER | NEWER])
def test_another_body_or_secret_is_not(headers):
    assert not WEBHOOK.verify(headers, BODY + b" ")
    assert not Webhook(b"other", "default").verify(headers, BODY)


def test_no_signature_is_none():
    assert not WEBHOOK.verify({}, BODY)


def test_the_secret_is_never_shown():
    assert "secret" not in repr(WEBHOOK)


def test_an_empty_newer_signature_does_not_fall_back_to_the_older():
    assert WEBHOOK.verify(OLDER, BODY)
    assert not WEBHOOK.verify({**OLDER, "agora-signature-v2": ""}, BODY)
