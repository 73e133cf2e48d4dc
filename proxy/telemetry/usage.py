"""How many tokens an answer took, as the upstream counted them."""

import json
from typing import Any, NamedTuple

# Within a string JSON has a backslash before the second quotation mark: this is a key.
_KEY = b'"usage":'
_TAIL = 4096
_decoder = json.JSONDecoder()


class Usage(NamedTuple):
    """Tokens; ``None`` where the upstream does not say."""

    input: int | None = None
    output: int | None = None


def usage_of(sent: list[bytes]) -> Usage:
    """The last usage in the bytes of an answer, a stream's or a whole one's."""
    tail = b"".join(sent[-4:])[-_TAIL:]
    place = tail.rfind(_KEY)
    if place < 0:
        return Usage()
    text = tail[place + len(_KEY) :].decode("utf-8", "replace").lstrip()
    try:
        found, _ = _decoder.raw_decode(text)
    except (ValueError, RecursionError):
        return Usage()
    return _counted(found) if isinstance(found, dict) else Usage()


def _counted(usage: dict[str, Any]) -> Usage:
    return Usage(_number(usage.get("prompt_tokens")), _number(usage.get("completion_tokens")))


def _number(given: object) -> int | None:
    return given if type(given) is int and 0 <= given < 2**53 else None
