"""What OpenAI and Azure answer to a body that they do not take, and what other judges share with them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from openai.types import chat
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming


class Refusal(NamedTuple):
    """A status, and the body as JSON values."""

    status: int
    body: Any


Body = Mapping[str, Any]


def keys_of(typed_dict: Any) -> frozenset[str]:
    """The keys that one of the SDK's types knows."""
    return typed_dict.__required_keys__ | typed_dict.__optional_keys__


SDK_FIELDS = keys_of(CompletionCreateParamsStreaming)
SDK_MESSAGES = {
    "assistant": keys_of(chat.ChatCompletionAssistantMessageParam),
    "developer": keys_of(chat.ChatCompletionDeveloperMessageParam),
    "function": keys_of(chat.ChatCompletionFunctionMessageParam),
    "system": keys_of(chat.ChatCompletionSystemMessageParam),
    "tool": keys_of(chat.ChatCompletionToolMessageParam),
    "user": keys_of(chat.ChatCompletionUserMessageParam),
}
SDK_CALL = keys_of(chat.ChatCompletionMessageFunctionToolCallParam) | {"custom"}
SDK_FUNCTION = {"arguments", "name"}


def openai(body: Body) -> Refusal | None:
    return _openai_fields(body, SDK_FIELDS) or _openai_messages(body) or tool_pairs(body)


def azure(body: Body) -> Refusal | None:
    own = {"data_sources", "user_security_context"}
    return _openai_fields(body, SDK_FIELDS | own) or _openai_messages(body) or tool_pairs(body)


def _openai_fields(body: Body, known: frozenset[str]) -> Refusal | None:
    if unknown := sorted(body.keys() - known):
        plural = "s" if len(unknown) > 1 else ""
        return _openai_error(f"Unrecognized request argument{plural} supplied: {', '.join(unknown)}")
    if body.get("metadata") is not None and not body.get("store"):
        return _openai_error("The 'metadata' parameter is only allowed when 'store' is enabled.")
    for key, value in (body.get("metadata") or {}).items():
        if not isinstance(value, str):
            return _openai_error(f"Invalid type for 'metadata.{key}': expected a string.", "metadata")
    if len(body.get("metadata") or {}) > 16:
        return _openai_error("Invalid 'metadata': too many properties. Expected at most 16.", "metadata")
    return limits(body)


def limits(body: Body) -> Refusal | None:
    for name in ("max_tokens", "max_completion_tokens"):
        limit = body.get(name)
        if isinstance(limit, int | float) and limit < 1:
            return _openai_error(
                f"Invalid '{name}': integer below minimum value. "
                f"Expected a value >= 1, but got {limit} instead.",
                name,
            )
    return None


def _openai_messages(body: Body) -> Refusal | None:
    if not body.get("messages"):
        return _openai_error("[] is too short - 'messages'")
    for place, unknown in unknown_keys(body["messages"]):
        return _openai_error(
            f"Additional properties are not allowed ('{unknown}' was unexpected) - '{place}'"
        )
    return None


def unknown_keys(messages: Sequence[Body]) -> Iterator[tuple[str, str]]:
    """Where a message, a tool call or a function holds a key that the SDK's types lack."""
    for i, message in enumerate(messages):
        place = f"messages.{i}"
        for key in message.keys() - SDK_MESSAGES.get(message["role"], frozenset()):
            yield place, key
        for j, call in enumerate(message.get("tool_calls") or ()):
            for key in call.keys() - SDK_CALL:
                yield f"{place}.tool_calls.{j}", key
            for key in call.get("function", {}).keys() - SDK_FUNCTION:
                yield f"{place}.tool_calls.{j}.function", key


def tool_pairs(body: Body) -> Refusal | None:
    open_calls: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in open_calls:
                return _openai_error(
                    "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
                )
            open_calls.remove(message["tool_call_id"])
        elif open_calls:
            break
        else:
            open_calls = [call["id"] for call in message.get("tool_calls") or ()]
    return _unanswered(open_calls) if open_calls else None


def _unanswered(calls: list[str]) -> Refusal:
    return _openai_error(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
        f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(calls)}"
    )


def _openai_error(message: str, param: str | None = None) -> Refusal:
    return Refusal(400, {"error": error_of(message, param)})


def error_of(message: str, param: str | None = None) -> dict[str, Any]:
    return {"message": message, "type": "invalid_request_error", "param": param, "code": None}
