"""A long answer is sent in slices, none of which keeps the server for long."""

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import msgspec
import pytest

from proxy.rest.endpoint import long_response

KB = 1000


def sent(content: Any) -> list[bytes]:
    """The parts of the answer's body."""
    parts: list[bytes] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            parts.append(message["body"])

    async def stay() -> MutableMapping[str, Any]:
        return await asyncio.get_running_loop().create_future()

    scope = {"type": "http", "method": "GET", "asgi": {"spec_version": "2.4"}}
    asyncio.run(long_response(content)(scope, stay, send))
    return parts


@pytest.mark.parametrize(
    "content",
    [{}, [], [[]], {"a": []}, {"a": {"b": {"c": {"d": {"e": [1, "\u2028"]}}}}}, [None, True, 1.5, "x"]],
)
def test_it_is_the_same_json(content: Any) -> None:
    assert json.loads(b"".join(sent(content))) == content


class Inner(msgspec.Struct):
    name: str = msgspec.field(name="title")
    missing: Any = msgspec.UNSET


def test_a_struct_is_written_as_the_encoder_writes_it() -> None:
    value = {"steps": (Inner("a"), Inner("b", missing=[1])), "one": Inner("c")}
    assert b"".join(sent(value)) == msgspec.json.encode(value)


def test_no_slice_is_longer_than_64_kilobytes_and_a_message() -> None:
    messages = [{"role": "user", "content": "x" * 10 * KB} for _ in range(200)]
    export = {"user": "ann", "sessions": [{"id": f"s{i}", "contents": messages} for i in range(3)]}
    parts = sent(export)
    assert max(map(len, parts)) < 75 * KB
    assert json.loads(b"".join(parts)) == export
