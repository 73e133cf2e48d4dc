"""A request as a file holds it: a bare body, or a body with its headers and its path."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from proxy.errors import RequestError
from proxy.turn.turn import Posted

_FORM = 'write a request\'s body, or {"headers": {…}, "path": "…", "body": {…}}'


def request(data: bytes, headers: Mapping[str, str], tenant: str = "default") -> Posted:
    """The request that a file holds; ``headers``, in lower case, go before those of the file.

    Raises RequestError.
    """
    wrapped = _wrapped(data)
    named = {**_headers(wrapped.get("headers", {})), **headers}
    query = dict(parse_qsl(_query(wrapped.get("path", "/"))))
    body = bytes(wrapped["body"]) if "body" in wrapped else data
    return Posted(headers=named, query=query, body=body, tenant=tenant)


def header(given: str) -> tuple[str, str]:
    """A header that is written as ``Name: value``. Raises RequestError."""
    name, colon, value = given.partition(":")
    if not colon or not name.strip():
        raise RequestError("Write a header as 'Name: value'.")
    return name.strip().lower(), value.strip()


def _wrapped(data: bytes) -> dict[str, Any]:
    """The parts of a request, the body as it is written; empty where the file is the body itself."""
    try:
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}  # reading the body says what is wrong with it
    if "body" not in fields or "messages" in fields:
        return {}
    return {name: raw if name == "body" else _decoded(name, raw) for name, raw in fields.items()}


def _decoded(name: str, raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        raise RequestError(f"'{name}' cannot be read; {_FORM}.") from None


def _headers(given: object) -> Mapping[str, str]:
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise RequestError(f"'headers' must be names and texts; {_FORM}.", param="headers")
    return {name.lower(): value for name, value in given.items()}


def _query(path: object) -> str:
    try:
        return urlsplit(path).query if isinstance(path, str) else _no_path()
    except ValueError:
        return _no_path()


def _no_path() -> str:
    raise RequestError(f"'path' must be a path; {_FORM}.", param="path")
