"""What an event or a body carries, as the most patient of its readers would have it."""

import json
from typing import Any

import msgspec


class Garbled(ValueError):
    """No reader makes anything of it."""


def payload(data: bytes) -> Any:
    """The value that JSON stands for: with half a character, ``NaN`` or broken UTF-8 in it, too.

    Raises Garbled.
    """
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        raise Garbled from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _patiently(data)


def written(value: Any) -> bytes:
    """A value as JSON; what no strict writer takes stands as it was read."""
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, OverflowError):
        return json.dumps(value, separators=(",", ":")).encode()


def _patiently(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8-sig", "replace"), strict=False)
    except (ValueError, RecursionError):
        raise Garbled from None
