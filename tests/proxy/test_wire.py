"""A body read once: known fields as values, unknown ones kept, faults named."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from proxy import wire
from proxy.errors import RequestError

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def read(messages: Any, **fields: Any) -> wire.Call:
    return wire.read(json.dumps({"messages": messages, **fields}).encode(), {}, {})


def test_what_is_null_is_not_what_is_missing() -> None:
    null, missing = read([{"role": "assistant", "content": None}, {"role": "assistant"}]).messages
    assert null.content is None
    assert missing.content is UNSET


def test_unknown_fields_are_kept() -> None:
    call = read([{"role": "user", "content": "x", "reasoning_content": "y", "*": 1}], model="m")
    assert call.messages[0].others == {"reasoning_content": "y", "*": 1}
    assert call.field("model") == "m"


@pytest.mark.parametrize("value", ["word", True, [1], {"a": 1}, 10**30, -(10**30)])
def test_a_bad_extension_is_left_out_and_named(value: Any) -> None:
    call = read([{"role": "user", "content": "x"}, {"role": "user", "content": "x", "timestamp": value}])
    assert call.ignored == ("messages[1].timestamp",)
    assert call.messages[1].timestamp is UNSET


@pytest.mark.parametrize(
    ("timestamp", "seconds"), [(1678901234, 1678901234.0), (1678901234567, 1678901234.567)]
)
def test_timestamps_count_seconds_or_milliseconds(timestamp: int, seconds: float) -> None:
    assert read([{"role": "user", "content": "x", "timestamp": timestamp}]).messages[0].seconds == seconds


@given(messages=st.lists(st.dictionaries(st.sampled_from([
    "role", "content", "name", "tool_calls", "tool_call_id", "turn_id", "timestamp", "metadata", "x"
]), ANYTHING), max_size=3))  # fmt: skip
def test_any_json_is_read_or_refused(messages: list[dict[str, Any]]) -> None:
    try:
        call = read(messages)
    except RequestError as error:
        assert error.param
        return
    for message in call.messages:
        assert isinstance(message.text, str)
        assert message.seconds is None or isinstance(message.seconds, float)
        assert (message.source, message.user, message.original, message.interrupted) is not None


@given(body=st.binary(max_size=50) | ANYTHING.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        wire.read(body, {}, {})
    except RequestError as error:
        assert error.message
