"""What a request's head must say once and in one way, or two readers take it for two requests."""

from collections.abc import Sequence

from proxy.errors import RequestError


def fault(version: str, headers: Sequence[tuple[bytes, bytes]]) -> RequestError | None:
    """What is wrong with a head whose names are in lower case (RFC 9112, 3.2 and 6.1)."""
    names = [name for name, _ in headers]
    hosts = names.count(b"host")
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        return RequestError(f"'Host' must be there once; {hosts} came.", code="invalid_http")
    if b"transfer-encoding" in names and not _just_chunked(headers):
        return RequestError("'Transfer-Encoding' must be 'chunked', once, or absent.", code="invalid_http")
    return None


def _just_chunked(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    return codings == [b"chunked"]
