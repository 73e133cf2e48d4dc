"""Hides the values of a request that may be secret, and lists the fields that the upstream does not get.

Voice platforms put secrets into fields of their own. Only the type and length of unknown fields are shown.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from filters.base import Fields
from filters.message import MARKS, SYSTEM
from proxy.answer.sse import decode_raw
from proxy.upstream.body import ELEVENLABS
from proxy.upstream.practice import IN_MESSAGES, TOP_LEVEL
from proxy.upstream.providers import Names, Provider

_SIZED: Final = {str: ("text", "characters"), list: ("list", "items"), dict: ("object", "keys")}
_UNSIZED: Final = {bool: "boolean", int: "number", float: "number", type(None): "null"}

_MESSAGE: Final = IN_MESSAGES | MARKS | {"turn_id", "timestamp", "metadata"}
_FUNCTION: Final = frozenset({"name", "arguments"})
_INNER: Final = {
    "metadata": MARKS,
    "content": frozenset({"type", "text", "image_url", "input_audio", "file", "refusal"}),
    "tool_calls": frozenset({"id", "type", "index", "function", "custom"}),
    "function": _FUNCTION,
    "function_call": _FUNCTION,
    "custom": frozenset({"name", "input"}),
    "audio": frozenset({"id"}),
}
"""By field, the names that may be shown in its object, or in its list of objects."""


def value_shape(value: object) -> str:
    """Describes a value by its type and length alone: ``text of 12 characters``."""
    for kind, (name, unit) in _SIZED.items():
        if isinstance(value, kind):
            return f"{name} of {len(value)} {unit}"
    return _UNSIZED.get(type(value), "value")


def shown_field(name: str, value: Raw, extra: Names = frozenset()) -> Raw | str:
    """Returns a top-level field if it is OpenAI's or named in ``extra``, else its shape."""
    return value if name in TOP_LEVEL or name in extra else _hidden(decode_raw(value))


def shown_message(message: Mapping[str, Any], extra: Names = frozenset()) -> dict[str, Any]:
    """Returns a message with shapes for fields that are not OpenAI's, a voice platform's or in ``extra``."""
    return _shown_object(message, _MESSAGE | extra, extra)


def shown_body(sent: Fields, messages: Sequence[Mapping[str, Any]], provider: Provider) -> dict[str, Any]:
    """Returns a body as the provider gets it, with shapes for fields that only the configuration allows."""
    names: Names = frozenset().union(*provider.messages.values()) | provider.calls
    fields = {name: shown_field(name, value, provider.fields) for name, value in sent.items()}
    return {**fields, "messages": [shown_message(message, names) for message in messages]}


def _shown_object(fields: Mapping[str, Any], names: Names, extra: Names) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in fields.items():
        inner = _INNER.get(name)
        if name not in names:
            result[name] = _hidden(value)
        elif inner is None:
            result[name] = value
        elif isinstance(value, list):
            items = (_shown_object(v, inner | extra, extra) if isinstance(v, dict) else v for v in value)
            result[name] = list(items)
        else:
            result[name] = _shown_object(value, inner | extra, extra) if isinstance(value, dict) else value
    return result


def _hidden(value: object) -> str:
    return f"(not shown: {value_shape(value)})"


# --- fields that the upstream does not get

_LIMITS: Final = frozenset({"max_tokens", "max_completion_tokens", "maxTokens"})
_FUNCTIONS: Final = frozenset({"functions", "function_call"})


_TITLES: Final = {
    "openai": "OpenAI",
    "azure": "Azure OpenAI",
    "any": "'accepts: any'",
    "groq": "Groq",
    "mistral": "Mistral",
    "gemini": "Gemini",
    "anthropic": "Anthropic",
    "vllm": "vLLM",
    "ollama": "Ollama",
}


class Stripped(msgspec.Struct, frozen=True):
    """A field that the upstream does not get, or not as the client sent it.

    ``name`` is the field's name, in messages as ``messages[].turn_id``. ``form`` is the shape of a top-level
    field, and ``count`` is how often the name occurs.
    """

    name: str
    why: str
    form: str | None = None
    count: int = 1


def stripped_fields(
    fields: Fields, messages: Sequence[Mapping[str, Any]], sent: Mapping[str, Any], provider: Provider
) -> tuple[Stripped, ...]:
    """Returns the fields that are missing or changed in ``sent``, with reasons; the top level comes first."""
    values = {name: decode_raw(raw) for name, raw in fields.items()}
    before, after = values.get("metadata"), sent.get("metadata")
    stripped = [
        Stripped(name, _reason(name, value, values, provider), value_shape(value))
        for name, value in values.items()
        if name not in sent
    ]
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() - after.keys():
        why = "only short texts, and no names of ours, may be stored"
        stripped.append(Stripped("metadata", why, count=len(before.keys() - after.keys())))
    rest: Sequence[Mapping[str, Any]] = sent["messages"]
    for name, count in (Counter(_field_names(messages)) - Counter(_field_names(rest))).items():
        stripped.append(Stripped(f"messages[].{name}", _not_taken(provider), count=count))
    roles, new_roles = (Counter(str(message["role"]) for message in each) for each in (messages, rest))
    for role, other in provider.roles.items():
        if roles[role]:
            stripped.append(Stripped(f"messages[].role {role}", f"sent as {other}", count=roles[role]))
    late = sum(roles[role] - new_roles[role] for role in SYSTEM)
    if late > 0:
        why = "joined to the first, or sent as the user's"
        stripped.append(Stripped("messages[].role system", why, count=late))
    if len(messages) != len(rest):
        why = f"sent as {len(rest)}, in the order that {provider.name} takes"
        stripped.append(Stripped("messages", why, count=len(messages)))
    return tuple(stripped)


def _reason(name: str, value: object, fields: Mapping[str, object], provider: Provider) -> str:
    new_name = provider.renames.get(name)
    if name in _LIMITS and isinstance(value, int | float) and value <= 0:
        return "a limit that is none"
    if new_name and new_name not in fields:
        return f"sent as {new_name}"
    if name == "user_id" and ELEVENLABS in fields and isinstance(value, str) and "user" not in fields:
        return "sent as user" if "user" in provider.fields else _not_taken(provider)
    if name in _FUNCTIONS and not provider.functions:
        return "sent as tools, or already there as tools"
    if name == "metadata" and name in provider.fields:
        return "taken only together with store, as short texts"
    return _not_taken(provider)


def _not_taken(provider: Provider) -> str:
    return f"not a field that {_TITLES.get(provider.name, provider.name)} takes"


def _field_names(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the names of all fields except role and content, those in tool calls included."""
    for message in messages:
        yield from (name for name in message if name not in {"role", "content"})
        for call in message.get("tool_calls") or ():
            yield from (f"tool_calls[].{name}" for name in call)
            for kind in ("function", "custom"):
                if isinstance(call.get(kind), dict):
                    yield from (f"tool_calls[].{kind}.{name}" for name in call[kind])
