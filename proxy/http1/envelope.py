"""A request as it goes on the wire."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

Headers = Sequence[tuple[bytes, bytes]]

_METHOD = re.compile(r"(?!HEAD$|CONNECT$)[A-Z]+")
_PATH = re.compile(r"/[\x21\x22\x24-\x7e]*")
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_FRAMING = frozenset(
    (b"connection", b"content-length", b"expect", b"te", b"trailer", b"transfer-encoding", b"upgrade")
)


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every request to one upstream has in its head."""

    before_path: bytes
    host: bytes
    proxy_lines: bytes

    def request(self, method: str, path: str, headers: Headers, body: bytes) -> tuple[bytes, bytes]:
        """Head and body; ValueError where a word of the caller's would break the head's lines."""
        if not _METHOD.fullmatch(method) or not _PATH.fullmatch(path):
            raise ValueError(f"{method!r} {path!r}: not a method and a path that this client sends")
        lines = [
            b"%b %b%b HTTP/1.1\r\n" % (method.encode(), self.before_path, path.encode()),
            self.proxy_lines,
        ]
        named = {_add(lines, name, value) for name, value in headers}
        if b"host" not in named:
            lines.append(b"host: %b\r\n" % self.host)
        if b"accept-encoding" not in named:
            lines.append(b"accept-encoding: identity\r\n")
        if body or method != "GET":
            lines.append(b"content-length: %d\r\n" % len(body))
        lines.append(b"\r\n")
        return b"".join(lines), body


def _add(lines: list[bytes], name: bytes, value: bytes) -> bytes:
    if not _NAME.fullmatch(name) or name in _FRAMING:
        raise ValueError(f"header {name!r}: no lower-case header name, or one that the client sets itself")
    # The value may be a key: it is never shown.
    if not _VALUE.fullmatch(value):
        raise ValueError(f"header {name!r}: its value holds a control character")
    lines.append(b"%b: %b\r\n" % (name, value))
    return name
