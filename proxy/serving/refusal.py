"""An answer in bytes, for a request that never became one."""

import secrets

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from proxy.errors import TurnkeeperError


def refusal(error: TurnkeeperError) -> bytes:
    """The whole answer, after which the connection closes."""
    body = error.body()
    head = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        "x-request-id": f"req_{secrets.token_hex(12)}",
        "server-timing": "request;dur=0.00",
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return STATUS_LINE[error.status] + lines.encode() + b"\r\n" + body
