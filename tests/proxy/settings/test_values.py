from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from proxy.settings.values import (
    check_base_url,
    check_token,
    forwarded_header_name,
    sent_header_name,
    sent_header_value,
)
from proxy.upstream.dial import Origin


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("practice:", "practice:"),
        ("https://api.example.com/v1", "https://api.example.com/v1"),
        ("https://api.example.com/v1/", "https://api.example.com/v1"),
        ("HTTP://127.0.0.1:9000", "HTTP://127.0.0.1:9000"),
        ("http://[::1]:9000/", "http://[::1]:9000"),
        ("https://h/a@b/v1", "https://h/a@b/v1"),
        ("http://h./v1", "http://h./v1"),
        (f"http://{'x' * 63}.example/v1", f"http://{'x' * 63}.example/v1"),
    ],
)
def test_an_address_is_taken_without_its_last_slash(written, read):
    assert check_base_url(written) == read


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", "write an address such as"),
        ("api.example.com/v1", "write an address such as"),
        ("ftp://api.example.com", "write an address such as"),
        ("http://", "write an address such as"),
        ("http:///v1", "write an address such as"),
        ("http://[::1/v1", "write an address such as"),
        ("http://h:99999/v1", "write an address such as"),
        ("http://h:x/v1", "write an address such as"),
        ("practice:x", "write an address such as"),
        ("http://h/v 1", "not contain spaces"),
        ("http://h/v1\n", "not contain spaces"),
        ("http://bücher.example/v1", "not contain spaces"),
        ("https://u:s3cret@h/v1", "not contain a user or password"),
        ("https://s3cret@h/v1", "not contain a user or password"),
        ("https://h/v1?key=s3cret", "remove the '?' or '#'"),
        ("https://h/v1#s3cret", "remove the '?' or '#'"),
        ("http://a..b/v1", "between two dots stand 1 to 63 characters"),
        ("http://.b/v1", "between two dots stand 1 to 63 characters"),
        (f"http://{'x' * 64}.example/v1", "between two dots stand 1 to 63 characters"),
        (f"http://{'x.' * 128}/v1", "in all of it at most 253"),
        ("http://a!b/v1", "write an address such as"),
        ('http://h/"v1', "write an address such as"),
        ("https://h/v1/chat/completions", "remove /chat/completions"),
        ("https://h/v1/chat/completions/", "remove /chat/completions"),
    ],
)
def test_a_wrong_address_is_answered_with_what_to_do_and_never_shown(written, said):
    with pytest.raises(ValueError) as caught:
        check_base_url(written)
    assert said in str(caught.value)
    assert "s3cret" not in str(caught.value)


@given(st.text() | st.text().map("https://{}".format))
def test_any_text_is_an_address_or_a_value_error(written):
    with suppress(ValueError):
        assert check_base_url(written)


@given(st.text('ab.-:/@[]%"!1', min_size=1).map("http://{}".format))
def test_whoever_calls_takes_whatever_address_is_taken_here(written):
    with suppress(ValueError):
        taken = check_base_url(written)
        host = Origin.of(taken).host
        assert host.encode("idna")


@pytest.mark.parametrize("name", ["X-Trace", "traceparent", "Api-Key"])
def test_a_common_header_may_be_sent_and_forwarded(name):
    assert sent_header_name(name) == forwarded_header_name(name) == name.lower()


@pytest.mark.parametrize(
    "name",
    ["Connection", "keep-alive", "TE", "Trailer", "Transfer-Encoding", "upgrade", "Proxy-Authorization",
     "Host", "Content-Length", "content-encoding", "Accept-Encoding", "", "a b", "a:b", "ä", "a\r\nb"],
)  # fmt: skip
def test_what_belongs_to_one_message_is_neither_sent_nor_forwarded(name):
    for check in (sent_header_name, forwarded_header_name):
        with pytest.raises(ValueError):
            check(name)


def test_a_clients_own_credentials_are_not_forwarded_by_name():
    assert sent_header_name("Authorization") == "authorization"
    with pytest.raises(ValueError, match="forward_key"):
        forwarded_header_name("Authorization")
    with pytest.raises(ValueError, match="cookie"):
        forwarded_header_name("Cookie")


@pytest.mark.parametrize("value", ["s3cret\r\nx: y", "s3crét", "s3cret\0"])
def test_a_value_that_cannot_stand_in_a_header_is_refused_unseen(value):
    for check in (sent_header_value, check_token):
        with pytest.raises(ValueError) as caught:
            check(SecretStr(value))
        assert "s3c" not in str(caught.value)


def test_a_header_may_hold_spaces_and_a_key_may_not():
    assert sent_header_value(SecretStr("Basic abc")) == SecretStr("Basic abc")
    assert check_token(SecretStr("")) == SecretStr("")
    with pytest.raises(ValueError):
        check_token(SecretStr("sk abc"))
