"""A whole answer, as far as it is told from what is none."""

import re
from typing import Any

from proxy.answer.sse import Garbled, payload
from proxy.errors import UpstreamBroken, UpstreamError
from proxy.routing.opening import refusal
from proxy.upstream import Headers

_OK = 200
_TYPE = re.compile(rb"\s*([a-z0-9][a-z0-9.+-]{0,40}/[a-z0-9][a-z0-9.+-]{0,60})\s*(;|\Z)", re.IGNORECASE)


def fault_of(status: int, headers: Headers, body: bytes) -> UpstreamError | None:
    """Why a body that came with success is no completion; ``None`` for one that has choices.

    What is said of it quotes nothing but its type: pages to log in at hold more than a caller should know.
    """
    try:
        answer = payload(body)
    except Garbled:
        return _none(status, _size(body, headers))
    if not isinstance(answer, dict):
        return _none(status, _size(body, headers))
    if _has_choices(answer.get("choices")):
        return None
    error = answer.get("error")
    return refusal(body, error) if error else _none(status, "JSON without choices")


def _has_choices(choices: Any) -> bool:
    return isinstance(choices, list) and any(choice and isinstance(choice, dict) for choice in choices)


def _none(status: int, came: str) -> UpstreamBroken:
    under = "" if status == _OK else f" under the status {status}"
    return UpstreamBroken(f"The upstream sent {came}{under}, which is no completion; check its base_url.")


def _size(body: bytes, headers: Headers) -> str:
    if not body.strip():
        return "an empty body"
    types = (_TYPE.match(value) for name, value in headers if name == b"content-type")
    named = next((found[1].decode().lower() for found in types if found), "no known type")
    return f"{len(body)} bytes of {named}"
