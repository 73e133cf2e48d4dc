import pytest
from pydantic import SecretStr

from proxy.settings.values import check_token, forwarded_header_name, sent_header_name, sent_header_value


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
