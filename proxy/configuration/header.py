"""Which headers a configuration may send to an upstream, or let through to it."""

import re

from pydantic import SecretStr

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[ -~\t]*")
_HOP_BY_HOP = {
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
    "te", "trailer", "transfer-encoding", "upgrade",
}  # fmt: skip
# They tell of the one message that they came with; the next message has its own.
_OF_THE_MESSAGE = {
    "accept-encoding", "content-encoding", "content-length", "content-type", "expect", "host",
}  # fmt: skip
_ADVICE = {
    "authorization": "'authorization' cannot be forwarded by name; use forward_key",
    "cookie": "'cookie' stays between a client and this server; take it out",
}


def sent_name(name: str) -> str:
    """A header sent with every request, in lower case. Raises ValueError for one that cannot be set."""
    lower = name.lower()
    if not _NAME.fullmatch(name):
        raise ValueError("write a header's name: letters, digits and '-'")
    if lower in _HOP_BY_HOP | _OF_THE_MESSAGE:
        raise ValueError(f"{lower!r} is set for each message by itself; take it out")
    return lower


def forwarded_name(name: str) -> str:
    """A client's header that goes on, in lower case. Raises ValueError for one that must not."""
    lower = sent_name(name)
    if lower in _ADVICE:
        raise ValueError(_ADVICE[lower])
    return lower


def sent_value(value: SecretStr) -> SecretStr:
    """A header's value. Raises ValueError, without the value, for what cannot stand in a header."""
    if not _VALUE.fullmatch(value.get_secret_value()):
        raise ValueError("a header's value is one line of ASCII")
    return value


def token(value: SecretStr) -> SecretStr:
    """A key that goes into a header. Raises ValueError, without the key, for what cannot be one."""
    if re.search(r"[^!-~]", value.get_secret_value()):
        raise ValueError("a key has no spaces or line breaks, and no characters beyond ASCII")
    return value
