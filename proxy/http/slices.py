"""A long value as JSON, made slice by slice: nothing else runs while a large one is encoded."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final

import msgspec

_SLICE: Final = 64_000
# A user's export is an object of arrays of sessions, which are objects of arrays of messages. So is an
# explanation, with steps in the place of sessions.
_LEVELS: Final = 4


async def json_slices(content: Any) -> AsyncIterator[bytes]:
    """A value as JSON in slices of some 64 KB, each encoded in a thread."""
    pieces = _encoded_pieces(content, _LEVELS)
    while slice_ := await asyncio.to_thread(_next_slice, pieces):
        yield slice_


def _next_slice(pieces: Iterator[bytes]) -> bytes:
    slice_ = bytearray()
    for piece in pieces:
        slice_ += piece
        if len(slice_) >= _SLICE:
            break
    return bytes(slice_)


def _encoded_pieces(value: Any, levels: int) -> Iterator[bytes]:
    """A value as JSON: objects and arrays of so many ``levels`` element by element, what is below at once."""
    if levels and isinstance(value, dict | msgspec.Struct):
        fields = value if isinstance(value, dict) else _fields(value)
        for index, (name, each) in enumerate(fields.items()):
            yield (b"," if index else b"{") + msgspec.json.encode(name) + b":"
            yield from _encoded_pieces(each, levels - 1)
        yield b"}" if fields else b"{}"
    elif levels and isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield b"," if index else b"["
            yield from _encoded_pieces(each, levels - 1)
        yield b"]" if value else b"[]"
    else:
        yield msgspec.json.encode(value)


def _fields(struct: msgspec.Struct) -> Mapping[str, Any]:
    """The fields as the encoder writes them."""
    values = {field.encode_name: getattr(struct, field.name) for field in msgspec.structs.fields(struct)}
    return {name: value for name, value in values.items() if value is not msgspec.UNSET}
