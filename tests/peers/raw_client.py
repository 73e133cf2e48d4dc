"""A client without a library: bytes out, bytes in."""

import json
import socket
from typing import Any, Self


class RawClient:
    """One connection to a server on loopback."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def until(self, mark: bytes) -> bytes:
        """Reads up to and with ``mark``, or less if the server closes first."""
        got = b""
        while mark not in got:
            data = self.socket.recv(65536)
            if not data:
                break
            got += data
        return got

    def rest(self) -> bytes:
        """Reads until the server closes the connection."""
        got = b""
        while data := self.socket.recv(65536):
            got += data
        return got


def request(
    path: str = "/v1/chat/completions", *, version: str = "1.1", extra: str = "", **body: Any
) -> bytes:
    """A chat completion as bytes."""
    said = json.dumps({"model": "fake", "messages": [{"role": "user", "content": "Hi"}], **body}).encode()
    head = f"POST {path} HTTP/{version}\r\nhost: 127.0.0.1\r\ncontent-length: {len(said)}\r\n{extra}\r\n"
    return head.encode() + said


def split(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer as it came."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return int(first.split()[1]), headers, body
