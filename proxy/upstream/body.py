"""The filtered chat request, and the body for one upstream, limited to what its provider takes."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from filters.base import Fields, Messages
from filters.message import SYSTEM, Content, Message, parts_of
from proxy.answer.response import Headers
from proxy.answer.sse import decode_raw
from proxy.answer.transcript import object_in
from proxy.errors import RequestError
from proxy.tools.rounds import Dialogue, Tools
from proxy.upstream.providers import Names, Provider
from proxy.upstream.target import Target

OWN_KEYS = frozenset({"agent_id", "background", "session_id", "user_id"})
"""Keys of ``metadata`` that are meant for this proxy, not for the model."""
SILENCE = "…"
"""The content of a message for a turn without words: providers refuse some empty messages."""
MARK = "[system] "
SIGNED = "extra_content"
"""The key of a tool call in which Gemini puts its signature; Gemini refuses the key anywhere else."""

# OpenAI's limits on metadata: pairs, characters of a key, characters of a value.
_PAIRS, _KEY, _VALUE = 16, 64, 512
ELEVENLABS = "elevenlabs_extra_body"
"""Marks a body from ElevenLabs, whose ``user_id`` is OpenAI's ``user``; elsewhere it is for this proxy."""
_LIMITS = ("max_tokens", "max_completion_tokens", "maxTokens")
_NOT_POSITIVE = re.compile(rb"-.*|0+(\.0*)?([eE].*)?")
_TRUE, _NULL = Raw(b"true"), Raw(b"null")
_NINE = re.compile("[a-zA-Z0-9]{9}")
_SPEAKERS = ("user", "assistant")

_STRUCT_FIELDS = frozenset(Message.__struct_fields__)
_OPTIONAL = ("name", "tool_calls", "tool_call_id", "turn_id", "timestamp", "metadata")
_INNER = {
    "audio": frozenset({"id"}),
    "custom": frozenset({"input", "name"}),
    "function": frozenset({"arguments", "name"}),
    "function_call": frozenset({"arguments", "name"}),
}
_NO_NAMES: Names = frozenset()
_CONTENT = frozenset({"content"})

_encode = msgspec.json.Encoder().encode
_decode_functions = msgspec.json.Decoder(list[Raw]).decode


class UpstreamRequest(msgspec.Struct, frozen=True):
    """A request for one upstream; ``model`` is the model that it names."""

    headers: Headers
    body: bytes
    model: str


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A chat request after the filters. ``headers`` are the client's, with names in lower case.

    ``model`` is the model that the pipeline sets for every upstream, if it sets one.
    """

    model: str | None
    headers: Mapping[str, str]
    fields: Fields
    messages: Messages
    streaming: bool
    tools: Tools | None = None

    def to(self, target: Target) -> UpstreamRequest:
        """Composes the request for a target; raises RequestError where no model is named."""
        model = self.model or target.model
        name = model or self._client_model
        if not name:
            raise RequestError("'model' is missing; name a model, or set UPSTREAM_MODEL.", param="model")
        forwarded = target.forward_headers
        if target.forward_key:
            forwarded = (*forwarded, "authorization")
        headers = target.headers
        for header in forwarded:
            if value := self.headers.get(header):
                headers = [*headers, (header.encode("latin-1"), value.encode("latin-1"))]
        body = compose(target.provider, self.fields, self.messages, model=model, allow=target.allow)
        return UpstreamRequest(headers, body, name if isinstance(name, str) else "")

    def extended(self, dialogue: Dialogue) -> "ChatRequest":
        """The request that continues after rounds of memory tools."""
        messages = [*self.messages, *dialogue.messages]
        return msgspec.structs.replace(self, fields=dialogue.fields, messages=messages)

    def names_model(self, target: Target) -> bool:
        """Whether a model is named for this target."""
        return bool(self.model or target.model or self._client_model)

    @property
    def _client_model(self) -> object:
        """The value of the client's ``model``; ``None`` if it is missing or cannot be read."""
        return decode_raw(self.fields.get("model"))


def compose(
    provider: Provider,
    fields: Mapping[str, Raw],
    messages: Sequence[Message],
    *,
    model: str | None = None,
    allow: Names = _NO_NAMES,
) -> bytes:
    """A request body as JSON with only those names, at every level, that ``provider`` takes or ``allow`` has.

    ``fields`` is the client's top level without ``messages``; the fields that pass keep their bytes and their
    order. ``model`` replaces the client's. No argument is changed.
    """
    body = _top_level(provider, fields, allow)
    if model is not None:
        body["model"] = model
    if not provider.functions:
        messages = _with_tool_calls(messages)
    if provider.nine_char_ids:
        messages = _with_nine_char_ids(messages)
    if provider.thought_signatures and SIGNED not in allow:
        messages = _with_signatures_alone(messages)
    by_role, calls, other = provider.messages, provider.calls, _CONTENT
    if allow:
        by_role = {role: names | allow for role, names in by_role.items()}
        calls, other = calls | allow, other | allow
    body["messages"] = [
        _Words(message.role, message.content)
        if type(message.content) is str
        and message.name is message.tool_calls is message.tool_call_id is UNSET
        and not (message.others or allow)
        else _message(message, by_role.get(message.role, other), calls)
        for message in arrange(provider, messages)
    ]
    return _encode(body)


def _top_level(provider: Provider, fields: Mapping[str, Raw], allow: Names) -> dict[str, Any]:
    for limit in _LIMITS:
        if limit in fields and _NOT_POSITIVE.fullmatch(fields[limit]):  # platforms say -1 for no limit
            fields = {name: raw for name, raw in fields.items() if name != limit}
    names = provider.fields | allow if allow else provider.fields
    body: dict[str, Any] = dict(fields)
    if not body.keys() <= names:
        body = {name: raw for name, raw in fields.items() if name in names}
    for source, target in provider.renames.items():
        if source in fields and source not in names and target not in fields:
            body[target] = fields[source]
    if (
        ELEVENLABS in fields
        and "user" in names
        and "user" not in fields
        and "user_id" not in names
        and bytes(fields.get("user_id", _NULL)).startswith(b'"')  # OpenAI's user must be a string
    ):
        body["user"] = fields["user_id"]
    if "functions" in fields and "functions" not in names and "tools" not in fields:
        body |= _tools(fields)
    if "metadata" in body and "metadata" not in allow:
        body |= _stored_metadata(body.pop("metadata"), fields.get("store"))
    return body


def _tools(fields: Mapping[str, Raw]) -> dict[str, Any]:
    """``functions`` and ``function_call``, OpenAI's first form of tools, as ``tools`` and ``tool_choice``."""
    try:
        functions = _decode_functions(fields["functions"])
    except msgspec.ValidationError:
        return {}
    if not functions:
        return {}
    tools: dict[str, Any] = {"tools": [{"type": "function", "function": each} for each in functions]}
    if "function_call" in fields and "tool_choice" not in fields:
        choice = decode_raw(fields["function_call"])
        if isinstance(choice, dict) and "name" in choice:
            tools["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
        elif choice in ("auto", "none"):
            tools["tool_choice"] = choice
    return tools


def _stored_metadata(metadata: Raw, store: Raw | None) -> dict[str, Any]:
    """The ``metadata`` that may be sent: OpenAI takes it only together with ``store``."""
    if metadata == _NULL:
        return {"metadata": metadata}
    pairs = decode_raw(metadata) if store == _TRUE else None
    if not isinstance(pairs, dict):
        return {}
    valid = {
        key: value
        for key, value in pairs.items()
        if isinstance(value, str) and key not in OWN_KEYS and len(key) <= _KEY and len(value) <= _VALUE
    }
    return {"metadata": dict(list(valid.items())[:_PAIRS])} if valid else {}


# Messages.


class _Words(msgspec.Struct, gc=False):
    """A message of the usual form; a struct is encoded in half the time of a dictionary."""

    role: str
    content: str


def _message(message: Message, names: Names, calls: Names) -> dict[str, Any]:
    body: dict[str, Any] = {"role": message.role}
    if message.content is not UNSET:
        body["content"] = message.content
        if isinstance(message.content, list) and SIGNED not in names:
            body["content"] = [
                {name: value for name, value in part.items() if name != SIGNED} for part in message.content
            ]
    for name in _OPTIONAL:
        if name in names and (value := getattr(message, name)) is not UNSET:
            body[name] = value
    if message.others:
        body |= _only(message.others, names - _STRUCT_FIELDS)
    if body.get("tool_calls"):
        body["tool_calls"] = [_only(call, calls) for call in body["tool_calls"]]
    return body


def _only(entry: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """An entry reduced to these names, and the objects in it to the keys that are known for them."""
    body: dict[str, Any] = {}
    for key, value in entry.items():
        if key in names:
            inner = _INNER.get(key)
            if inner is None or not isinstance(value, dict) or value.keys() <= inner:
                body[key] = value
            else:
                body[key] = {name: each for name, each in value.items() if name in inner}
    return body


def _with_tool_calls(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages with each ``function_call`` as a tool call, and its result as a tool's."""
    if not any(message.role == "function" or "function_call" in message.others for message in messages):
        return messages
    modern, call = [], ""
    for i, message in enumerate(messages):
        function = message.others.get("function_call")
        if message.role == "function":
            modern.append(replace(message, role="tool", tool_call_id=call))
        elif message.role == "assistant" and isinstance(function, dict):
            # Nine letters and digits are the only form of id that every Mistral model accepts.
            call = f"call{i:05d}"
            others = {name: value for name, value in message.others.items() if name != "function_call"}
            entry = {"id": call, "type": "function", "function": function}
            modern.append(replace(message, tool_calls=[entry], others=others))
        else:
            modern.append(message)
    return modern


def _with_nine_char_ids(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages with nine letters and digits as the id of each call; equal ids stay equal."""
    shortened = []
    for message in messages:
        changes: dict[str, Any] = {}
        if isinstance(message.tool_call_id, str):
            changes["tool_call_id"] = _nine_char_id(message.tool_call_id)
        if message.tool_calls:
            changes["tool_calls"] = [
                {**call, "id": _nine_char_id(call["id"])} if isinstance(call.get("id"), str) else call
                for call in message.tool_calls
            ]
        shortened.append(replace(message, **changes) if changes else message)
    return shortened


def _with_signatures_alone(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages with the calls' ``extra_content`` reduced to Gemini's signature."""
    if not any(call.get(SIGNED) is not None for message in messages for call in message.tool_calls or ()):
        return messages
    bare = []
    for message in messages:
        calls = []
        for call in message.tool_calls or ():
            signature = object_in(object_in(call, SIGNED), "google").get("thought_signature")
            calls.append({name: value for name, value in call.items() if name != SIGNED})
            if isinstance(signature, str):
                calls[-1][SIGNED] = {"google": {"thought_signature": signature}}
        bare.append(replace(message, tool_calls=calls) if calls else message)
    return bare


def _nine_char_id(name: str) -> str:
    return name if _NINE.fullmatch(name) else hashlib.blake2b(name.encode()).hexdigest()[:9]


# The order of roles.


def arrange(provider: Provider, messages: Sequence[Message]) -> Sequence[Message]:
    """The messages in an order of roles that ``provider`` accepts; a tool call stays with its results.

    A system message that is not at the start becomes a marked user message in its place. At the start it
    would change the beginning of the prompt from turn to turn, by which providers cache.
    """
    roles = provider.roles
    if roles and any(message.role in roles for message in messages):
        messages = [replace(m, role=roles[m.role]) if m.role in roles else m for m in messages]
    if provider.system != "many":
        start = next((i for i, message in enumerate(messages) if message.role not in SYSTEM), len(messages))
        instructions, rest = messages[:start], messages[start:]
        if provider.system == "one" and instructions:
            first = instructions[0]
            for message in instructions[1:]:
                first = replace(first, content=_joined(first.content, message.content, "\n\n"))
            instructions = [first]
        messages = [
            *instructions,
            *(replace(m.prefixed(MARK), role="user", name=UNSET) if m.role in SYSTEM else m for m in rest),
        ]
    if provider.alternate:
        messages = _alternating(messages)
    if provider.answer_follows_tool:
        answered: list[Message] = []
        for message in messages:
            if message.role == "user" and answered and answered[-1].role == "tool":
                answered.append(Message(role="assistant", content=SILENCE))
            answered.append(message)
        messages = answered
    if provider.user_ends and messages:
        last = messages[-1]
        continues = last.tool_calls or last.others.get("prefix") is True
        if not continues and last.role not in ("user", "tool"):
            messages = [*messages, Message(role="user", content=SILENCE)]
    return messages


def _alternating(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages with user and assistant alternating, the user first; neighbours of one role are merged."""
    turns: list[Message] = []
    for message in messages:
        before = turns[-1] if turns else None
        if (
            before is not None
            and before.role == message.role
            and message.role in _SPEAKERS
            and not any(each.tool_calls or each.others.get("function_call") for each in (before, message))
        ):
            content = _joined(before.content, message.content, "\n")
            turns[-1] = replace(before, content=content, others={**before.others, **message.others})
        elif message.role == "assistant" and (before is None or before.role in SYSTEM):
            turns += [Message(role="user", content=SILENCE), message]
        else:
            turns.append(message)
    return turns


def _joined(first: Content | UnsetType, second: Content | UnsetType, gap: str) -> Content:
    if isinstance(first, list) or isinstance(second, list):
        return [*parts_of(first), *parts_of(second)]
    return gap.join(text for text in (first, second) if isinstance(text, str) and text)
