"""Reading a body: known fields become values, unknown ones are kept, errors name the field."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from proxy.errors import RequestError
from proxy.turn import request

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def read(messages: Any, **fields: Any) -> request.ClientRequest:
    return request.read_request(json.dumps({"messages": messages, **fields}).encode(), {}, {})


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
    "field",
    [
        {"timestamp": "yesterday"},
        {"timestamp": True},
        {"turn_id": "seven"},
        {"turn_id": 1.5},
        {"turn_id": 10**30},
        {"interruptable": "maybe"},
        {"interruptable": 1},
    ],
)
def test_a_bad_extension_of_the_top_level_is_named(field: dict[str, Any]) -> None:
    assert read([{"role": "user", "content": "x"}], **field).ignored == tuple(field)


@pytest.mark.parametrize(
    "mark",
    [
        {"source": 5},
        {"user": True},
        {"user": ["ann"]},
        {"interrupted": "yes"},
        {"interrupt_timestamp": "x"},
        {"original": {}},
    ],
)
def test_a_bad_mark_of_a_message_is_named(mark: dict[str, Any]) -> None:
    said = {"role": "assistant", "content": "x", "metadata": {"source": "llm"} | mark}
    (name,) = mark
    assert read([{"role": "user", "content": "x"}, said]).ignored == (f"messages[1].metadata.{name}",)


def test_extensions_as_engines_send_them_are_all_of_use() -> None:
    marks = {"interrupted": True, "interrupt_timestamp": 1.5, "original": "xy", "source": "llm", "mine": [1]}
    said = [
        {"role": "user", "content": "x", "turn_id": 1, "timestamp": 1, "metadata": {"user": 7}},
        {"role": "assistant", "content": "x", "metadata": marks},
        {"role": "user", "content": "x", "metadata": dict.fromkeys(marks)},
    ]
    assert read(said, turn_id=1, timestamp=1.5, interruptable=False).ignored == ()
    assert read(said, turn_id=None, timestamp=None, interruptable=None).ignored == ()


def test_bad_extensions_at_every_level_are_named_together() -> None:
    said = {"role": "user", "content": "x", "turn_id": "one", "metadata": {"source": 5}}
    assert read([said], turn_id="one").ignored == (
        "messages[0].turn_id",
        "turn_id",
        "messages[0].metadata.source",
    )


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
        request.read_request(body, {}, {})
    except RequestError as error:
        assert error.message
