"""The body that an upstream gets: nothing in it that its kind does not name."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from filters.message import SYSTEM, Content, Message
from proxy.upstream.providers import Names, Provider

# Keys of ``metadata`` that speak to this proxy, not to the model.
OWN_KEYS = frozenset({"agent_id", "background", "session_id", "user_id"})
# OpenAI's bounds: pairs, and characters of a key and of a value.
_PAIRS, _KEY, _VALUE = 16, 64, 512
_LIMITS = ("max_tokens", "max_completion_tokens", "maxTokens")
_NOT_POSITIVE = re.compile(rb"-.*|0+(\.0*)?([eE].*)?")
_TRUE, _NULL = Raw(b"true"), Raw(b"null")
_STRUCT_FIELDS = frozenset(Message.__struct_fields__)
_OPTIONAL = ("name", "tool_calls", "tool_call_id", "turn_id", "timestamp", "metadata")
_INNER = {
    "audio": frozenset({"id"}),
    "custom": frozenset({"input", "name"}),
    "function": frozenset({"arguments", "name"}),
    "function_call": frozenset({"arguments", "name"}),
}
_NO_NAMES: Names = frozenset()
_BARE = frozenset({"content"})
_encode = msgspec.json.Encoder().encode
_functions = msgspec.json.Decoder(list[Raw]).decode
_NINE = re.compile("[a-zA-Z0-9]{9}")
MARK = "[system] "
# What stands for a turn in which nothing was said: no upstream takes an empty message everywhere.
SILENCE = "…"
_SPEAKERS = ("user", "assistant")


def compose(
    provider: Provider,
    fields: Mapping[str, Raw],
    messages: Sequence[Message],
    *,
    model: str | None = None,
    allow: Names = _NO_NAMES,
) -> bytes:
    """A request body as JSON that holds what ``kind`` takes, and what ``allow`` names, at every level.

    ``fields`` is the client's top level without ``messages``; what passes keeps its bytes and its order.
    ``model`` stands in the place of the client's. Neither argument is changed.
    """
    body = _top_level(provider, _bounded(fields), allow)
    if model is not None:
        body["model"] = model
    kept = messages if provider.functions else modernise_messages(messages)
    kept = with_nine_char_ids(kept) if provider.nine_char_ids else kept
    body["messages"] = _history(provider, arrange(provider, kept), allow)
    return _encode(body)


def _top_level(kind: Provider, fields: Mapping[str, Raw], allow: Names) -> dict[str, Any]:
    names = kind.fields | allow if allow else kind.fields
    body: dict[str, Any] = {name: raw for name, raw in fields.items() if name in names}
    body |= _renamed(kind, fields, names)
    if not kind.functions:
        body |= _modernised(fields, names)
    if "metadata" in body and "metadata" not in allow:
        body |= _stored(body.pop("metadata"), fields.get("store"))
    return body


def _bounded(fields: Mapping[str, Raw]) -> Mapping[str, Raw]:
    """The fields without a limit that is none: engines say -1 where they mean no limit."""
    limitless = [name for name in _LIMITS if name in fields and _NOT_POSITIVE.fullmatch(fields[name])]
    return {name: raw for name, raw in fields.items() if name not in limitless} if limitless else fields


def _renamed(kind: Provider, fields: Mapping[str, Raw], names: Names) -> dict[str, Raw]:
    return {
        target: fields[source]
        for source, target in kind.renames.items()
        if source in fields and source not in names and target not in fields
    }


def _modernised(fields: Mapping[str, Raw], names: Names) -> dict[str, Any]:
    if "functions" not in fields or "functions" in names or "tools" in fields:
        return {}
    tools = tool_list(fields["functions"])
    choice = tool_choice(fields["function_call"]) if "function_call" in fields else None
    return {
        **({"tools": tools} if tools else {}),
        **({"tool_choice": choice} if tools and choice and "tool_choice" not in fields else {}),
    }


def _stored(metadata: Raw, store: Raw | None) -> dict[str, Any]:
    """What of ``metadata`` may be sent: OpenAI takes it only together with ``store``."""
    if metadata == _NULL:
        return {"metadata": metadata}
    try:
        pairs = msgspec.json.decode(metadata) if store == _TRUE else None
    except msgspec.DecodeError:  # a number beyond all that a machine counts with
        pairs = None
    if not isinstance(pairs, dict):
        return {}
    kept = {key: value for key, value in pairs.items() if _may_be_stored(key, value)}
    if kept == pairs and len(kept) <= _PAIRS:
        return {"metadata": metadata} if kept else {}
    return {"metadata": dict(list(kept.items())[:_PAIRS])} if kept else {}


def _may_be_stored(key: str, value: Any) -> bool:
    return isinstance(value, str) and key not in OWN_KEYS and len(key) <= _KEY and len(value) <= _VALUE


def _history(kind: Provider, messages: Sequence[Message], allow: Names) -> list[dict[str, Any]]:
    by_role, calls = kind.messages, kind.calls
    if allow:
        by_role = {role: names | allow for role, names in by_role.items()}
        calls |= allow
    other = _BARE | allow
    return [_sent(message, by_role.get(message.role, other), calls) for message in messages]


def _sent(message: Message, names: Names, calls: Names) -> dict[str, Any]:
    sent: dict[str, Any] = {"role": message.role}
    if message.content is not UNSET:
        sent["content"] = message.content
    for name in _OPTIONAL:
        if name in names and (value := getattr(message, name)) is not UNSET:
            sent[name] = value
    if message.others:
        sent |= _only(message.others, names - _STRUCT_FIELDS)
    if sent.get("tool_calls"):
        sent["tool_calls"] = [_only(call, calls) for call in sent["tool_calls"]]
    return sent


def _only(entry: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """The named keys of an entry, and of the objects in it whose keys are known."""
    return {key: _inner(key, value) for key, value in entry.items() if key in names}


def _inner(key: str, value: Any) -> Any:
    names = _INNER.get(key)
    if names is None or not isinstance(value, dict) or value.keys() <= names:
        return value
    return {name: inner for name, inner in value.items() if name in names}


def tool_list(functions: Raw) -> list[dict[str, Any]]:
    """``functions`` as ``tools``; empty when it is no list."""
    try:
        return [{"type": "function", "function": function} for function in _functions(functions)]
    except msgspec.ValidationError:
        return []


def tool_choice(function_call: Raw) -> Any:
    """``function_call`` as ``tool_choice``; ``None`` when it says nothing known."""
    try:
        choice = msgspec.json.decode(function_call)
    except msgspec.DecodeError:  # a number beyond all that a machine counts with
        return None
    if isinstance(choice, dict) and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice if choice in ("auto", "none") else None


def modernise_messages(messages: Sequence[Message]) -> Sequence[Message]:
    """The same conversation with each ``function_call`` a tool call, and its result a tool's."""
    if not any(message.role == "function" or "function_call" in message.others for message in messages):
        return messages
    modern, call = [], ""
    for place, message in enumerate(messages):
        if message.role == "assistant" and isinstance(message.others.get("function_call"), dict):
            # Nine letters and digits: the one form of an id that every Mistral model has taken.
            call = f"call{place:05d}"
        modern.append(_modern(message, call))
    return modern


def _modern(message: Message, call: str) -> Message:
    if message.role == "function":
        return msgspec.structs.replace(message, role="tool", tool_call_id=call)
    function = message.others.get("function_call")
    if message.role != "assistant" or not isinstance(function, dict):
        return message
    others = {name: value for name, value in message.others.items() if name != "function_call"}
    entry = {"id": call, "type": "function", "function": function}
    return msgspec.structs.replace(message, tool_calls=[entry], others=others)


def with_nine_char_ids(messages: Sequence[Message]) -> Sequence[Message]:
    """The same conversation with nine letters and digits for each call's id; one id stays one id."""
    return [_with_nine(message) for message in messages]


def _with_nine(message: Message) -> Message:
    if isinstance(message.tool_call_id, str):
        message = replace(message, tool_call_id=_nine(message.tool_call_id))
    if message.tool_calls:
        message = replace(message, tool_calls=[_called(call) for call in message.tool_calls])
    return message


def _called(call: dict[str, Any]) -> dict[str, Any]:
    name = call.get("id")
    return {**call, "id": _nine(name)} if isinstance(name, str) else call


def _nine(name: str) -> str:
    return name if _NINE.fullmatch(name) else hashlib.blake2b(name.encode()).hexdigest()[:9]


def arrange(kind: Provider, messages: Sequence[Message]) -> Sequence[Message]:
    """The messages in the order of roles that ``kind`` wants; a tool call stays with its results."""
    if kind.roles:
        messages = _with_roles(kind, messages)
    if kind.system != "many":
        messages = _system_first(messages, single=kind.system == "one")
    if kind.alternate:
        messages = _taking_turns(messages)
    if kind.answer_follows_tool:
        messages = _with_answers(messages)
    if kind.user_ends and messages and _is_answer(messages[-1]):
        messages = [*messages, Message(role="user", content=SILENCE)]
    return messages


def _with_roles(kind: Provider, messages: Sequence[Message]) -> Sequence[Message]:
    roles = kind.roles
    if not any(message.role in roles for message in messages):
        return messages
    return [replace(m, role=roles[m.role]) if m.role in roles else m for m in messages]


def _system_first(messages: Sequence[Message], *, single: bool) -> Sequence[Message]:
    start = next((i for i, message in enumerate(messages) if message.role not in SYSTEM), len(messages))
    leading, rest = list(messages[:start]), messages[start:]
    if single and leading:
        leading = [_one(leading)]
    return [*leading, *(_marked(message) for message in rest)]


def _one(leading: Sequence[Message]) -> Message:
    first = leading[0]
    for message in leading[1:]:
        first = replace(first, content=_joined(first.content, message.content, "\n\n"))
    return first


def _marked(message: Message) -> Message:
    if message.role not in SYSTEM:
        return message
    return replace(message.prefixed(MARK), role="user", name=UNSET)


def _taking_turns(messages: Sequence[Message]) -> Sequence[Message]:
    turns: list[Message] = []
    for message in messages:
        before = turns[-1] if turns else None
        if before is not None and _is_one_turn(before, message):
            turns[-1] = _merged(before, message)
        elif message.role == "assistant" and (before is None or before.role in SYSTEM):
            turns += [Message(role="user", content=SILENCE), message]
        else:
            turns.append(message)
    return turns


def _is_one_turn(first: Message, second: Message) -> bool:
    if first.role != second.role or first.role not in _SPEAKERS:
        return False
    return not (first.tool_calls or second.tool_calls or _calls_function(first) or _calls_function(second))


def _calls_function(message: Message) -> bool:
    return bool(message.others.get("function_call"))


def _merged(first: Message, second: Message) -> Message:
    content = _joined(first.content, second.content, "\n")
    return replace(first, content=content, others={**first.others, **second.others})


def _with_answers(messages: Sequence[Message]) -> Sequence[Message]:
    answered: list[Message] = []
    for message in messages:
        if message.role == "user" and answered and answered[-1].role == "tool":
            answered.append(Message(role="assistant", content=SILENCE))
        answered.append(message)
    return answered


def _is_answer(message: Message) -> bool:
    if message.tool_calls or message.others.get("prefix") is True:
        return False
    return message.role not in ("user", "tool")


def _joined(first: Content | UnsetType, second: Content | UnsetType, gap: str) -> Content:
    if isinstance(first, list) or isinstance(second, list):
        return [*_parts(first), *_parts(second)]
    return gap.join(text for text in (first, second) if isinstance(text, str) and text)


def _parts(content: Content | UnsetType) -> list[dict[str, str]]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if isinstance(content, str) and content else []
