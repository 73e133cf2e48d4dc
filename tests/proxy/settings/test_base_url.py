from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.settings.values import check_base_url
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
        ("http://h/v 1", "no spaces"),
        ("http://h/v1\n", "no spaces"),
        ("http://bücher.example/v1", "no spaces"),
        ("https://u:s3cret@h/v1", "no user or password"),
        ("https://s3cret@h/v1", "no user or password"),
        ("https://h/v1?key=s3cret", "cut the address before"),
        ("https://h/v1#s3cret", "cut the address before"),
        ("http://a..b/v1", "between two dots stand 1 to 63 characters"),
        ("http://.b/v1", "between two dots stand 1 to 63 characters"),
        (f"http://{'x' * 64}.example/v1", "between two dots stand 1 to 63 characters"),
        (f"http://{'x.' * 128}/v1", "in all of it at most 253"),
        ("http://a!b/v1", "write an address such as"),
        ('http://h/"v1', "write an address such as"),
        ("https://h/v1/chat/completions", "cut /chat/completions"),
        ("https://h/v1/chat/completions/", "cut /chat/completions"),
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
