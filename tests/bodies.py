"""Requests as engines and clients write them, and strategies that make them up."""

import json
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import Raw

from filters.message import Message

# Stands in every value that no upstream may see.
SECRET = "never-to-be-seen"

_FIELDS = frozenset(Message.__struct_fields__) - {"others"}

# One value of each field of OpenAI's that it would take.
TAKEN: dict[str, Any] = {
    "audio": {"format": "wav", "voice": "ash"},
    "frequency_penalty": 0.5,
    "logit_bias": {"50256": -100},
    "logprobs": True,
    "max_completion_tokens": 300,
    "max_tokens": 200,
    "metadata": {"topic": "weather"},
    "modalities": ["text"],
    "model": "a-model",
    "n": 1,
    "parallel_tool_calls": False,
    "prediction": {"type": "content", "content": "Hello"},
    "presence_penalty": 1.0,
    "prompt_cache_key": "k",
    "reasoning_effort": "low",
    "response_format": {"type": "text"},
    "seed": 7,
    "service_tier": "auto",
    "stop": ["\n"],
    "store": True,
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.7,
    "tool_choice": "auto",
    "tools": [{"type": "function", "function": {"name": "end_call", "parameters": {"type": "object"}}}],
    "top_logprobs": 2,
    "top_p": 0.9,
    "user": "u",
    "verbosity": "low",
    "web_search_options": {},
}


def fields_of(body: dict[str, Any]) -> dict[str, Raw]:
    return {name: Raw(json.dumps(value).encode()) for name, value in body.items() if name != "messages"}


def message_of(sent: dict[str, Any]) -> Message:
    known = {name: value for name, value in sent.items() if name in _FIELDS}
    return Message(**known, others={name: value for name, value in sent.items() if name not in _FIELDS})


def messages_of(sent: list[dict[str, Any]]) -> list[Message]:
    return [message_of(message) for message in sent]


_json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def json_values() -> st.SearchStrategy[Any]:
    return _json_values


# Names that engines are known to send, and some that no vendor knows.
_EXTRAS = [
    "turn_id",
    "timestamp",
    "metadata",
    "id",
    "status",
    "interruptable",
    "context",
    "session_id",
    "*",
    "x_y",
]
_names = st.lists(st.sampled_from(_EXTRAS), max_size=3, unique=True)
_contents = st.sampled_from(
    [
        "Hello there.",
        "And more.",
        "",
        [{"type": "text", "text": "see", "cache_control": {"type": "ephemeral"}}],
    ]
)
_roles = st.sampled_from(["user", "user", "assistant", "system", "developer"])


def _extras(names: list[str]) -> dict[str, Any]:
    return {name: {"value": [SECRET]} for name in names}


def _spoken(role: str, content: Any, *, named: bool, extras: list[str]) -> list[dict[str, Any]]:
    name = {"name": "Ann"} if named and role != "assistant" else {}
    return [{"role": role, "content": content, **name, **_extras(extras)}]


def _tool_group(ids: list[int], content: str | None, extras: list[str]) -> list[dict[str, Any]]:
    function = {"name": "look_up", "arguments": "{}", **_extras(extras)}
    calls = [{"id": f"call{i:05d}", "type": "function", "function": function, "x": SECRET} for i in ids]
    results = [
        {"role": "tool", "tool_call_id": f"call{i:05d}", "content": f"{i}", **_extras(extras)} for i in ids
    ]
    return [{"role": "assistant", "content": content, "tool_calls": calls, **_extras(extras)}, *results]


_pieces = st.builds(_spoken, _roles, _contents, named=st.booleans(), extras=_names) | st.builds(
    _tool_group,
    st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True),
    st.none() | st.just("One moment."),
    _names,
)


def _in_a_row(pieces: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [message for piece in pieces for message in piece]


def conversations(least: int = 1) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Messages of every role in any order; tool groups are whole; extensions hold ``SECRET``."""
    return st.lists(_pieces, min_size=least, max_size=6).map(_in_a_row)


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """What OpenAI takes, with names merged into it that it does not."""
    names = draw(st.lists(st.sampled_from(sorted(TAKEN)), unique=True))
    body = {**_extras(draw(_names)), **{name: TAKEN[name] for name in names}}
    if draw(st.booleans()):
        body["metadata"] = {"session_id": SECRET, "x": {"y": SECRET}, "n": 1, "topic": "weather"}
    return body


def encoded(messages: list[Message]) -> bytes:
    return msgspec.json.encode(messages)
