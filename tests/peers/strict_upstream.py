"""What strict upstreams answer to a body that they do not take.

Each judge goes by its vendor's published rejections and by the OpenAI SDK's own types, never by the lists
that the proxy keeps: a judge that shares them would prove nothing.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tests.peers.strict_openai import (
    SDK_FIELDS,
    SDK_FUNCTION,
    SDK_MESSAGES,
    Body,
    Refusal,
    azure,
    error_of,
    limits,
    openai,
    tool_pairs,
    unknown_keys,
)

Judge = Callable[[Body], Refusal | None]

SAMPLING = {"max_tokens", "model", "n", "stop", "stream", "temperature", "top_p"}


def judge(vendor: str, body: Body) -> Refusal | None:
    """What the vendor answers to the body instead of a completion; ``None`` when it takes it."""
    return JUDGES[vendor](body)


# What the API reference names beyond OpenAI's fields, and what the page on compatibility refuses of them.
GROQ_OWN = {
    *("citation_options", "compound_custom", "disable_tool_validation", "documents", "exclude_domains"),
    *("include_domains", "include_reasoning", "reasoning_format", "search_settings"),
}
GROQ_REFUSES = {"logit_bias", "logprobs", "metadata", "store", "top_logprobs"}
GROQ_ROLES = SDK_MESSAGES.keys() - {"developer"}


def _groq(body: Body) -> Refusal | None:
    for key in body:
        if key in GROQ_REFUSES or key not in SDK_FIELDS | GROQ_OWN:
            return _groq_error(f"property '{key}' is unsupported")
    if body.get("n") not in (None, 1):
        return _groq_error("'n' : number must be at most 1")
    return _groq_roles(body) or _groq_messages(body) or limits(body) or tool_pairs(body)


def _groq_roles(body: Body) -> Refusal | None:
    for i, message in enumerate(body["messages"]):
        if message["role"] not in GROQ_ROLES:
            return _groq_error(f"'messages.{i}' : discriminator property 'role' has invalid value")
        if "name" in message and message["role"] != "function":
            return _groq_message_error(i, message["role"], "name")
    return None


def _groq_messages(body: Body) -> Refusal | None:
    for place, unknown in unknown_keys(body["messages"]):
        i = int(place.split(".")[1])
        return _groq_message_error(i, body["messages"][i]["role"], unknown)
    for i, message in enumerate(body["messages"]):
        for key in ("function_call", "tool_calls"):
            if key in message and message[key] is None:
                return _groq_refusal(i, message["role"], f"'messages.{i}.{key}' : Value is not nullable")
    return None


def _groq_message_error(i: int, role: str, key: str) -> Refusal:
    return _groq_refusal(i, role, f"'messages.{i}' : property '{key}' is unsupported")


def _groq_refusal(i: int, role: str, why: str) -> Refusal:
    inner = f"({why})"
    return _groq_error(f"'messages.{i}' : for 'role:{role}' the following must be satisfied[{inner}]")


def _groq_error(message: str) -> Refusal:
    return Refusal(400, {"error": {"message": message, "type": "invalid_request_error"}})


def _cerebras(body: Body) -> Refusal | None:
    for key in body:
        if key not in SDK_FIELDS - {"logit_bias", "metadata", "store"}:
            return _cerebras_error(422, f"body.{key}")
    for place, unknown in unknown_keys(body["messages"]):
        i = int(place.split(".")[1])
        return _cerebras_error(400, f"messages.{i}.{body['messages'][i]['role']}.{unknown}")
    return None


def _cerebras_error(status: int, path: str) -> Refusal:
    said = f"{path}: property '{path}' is unsupported"
    kind = {"type": "invalid_request_error", "param": "validation_error", "code": "wrong_api_format"}
    return Refusal(status, {"message": said, **kind})


# The fields of the vendor's own request and message models, which forbid all others.
MISTRAL_FIELDS = SAMPLING | {
    *("frequency_penalty", "guardrails", "messages", "metadata", "parallel_tool_calls", "prediction"),
    *("presence_penalty", "prompt_cache_key", "prompt_mode", "random_seed", "reasoning_effort"),
    *("response_format", "safe_prompt", "tool_choice", "tools"),
}
MISTRAL_MESSAGES = {
    "assistant": {"content", "prefix", "role", "tool_calls"},
    "system": {"content", "role"},
    "tool": {"content", "name", "role", "tool_call_id"},
    "user": {"content", "role"},
}
MISTRAL_CALL = {"function", "id", "index", "type"}
MISTRAL_AFTER = {
    "": {"assistant", "system", "user"},
    "assistant": {"assistant", "tool", "user"},
    "system": {"assistant", "system", "user"},
    "tool": {"assistant", "tool"},
    "user": {"assistant", "user"},
}


def _mistral(body: Body) -> Refusal | None:
    extra = [["body", key] for key in sorted(body.keys() - MISTRAL_FIELDS)]
    for i, message in enumerate(body["messages"]):
        extra += _mistral_extra(["body", "messages", i, message["role"]], message)
    if extra:
        said = {"type": "extra_forbidden", "msg": "Extra inputs are not permitted"}
        detail = {"detail": [{**said, "loc": place} for place in extra]}
        return Refusal(422, {"object": "error", **error_of(""), "message": detail})
    for name in _call_ids(body["messages"]):
        if not re.fullmatch("[a-zA-Z0-9]{9}", name):
            said = f"Tool call id was {name} but must be a-z, A-Z, 0-9, with a length of 9."
            return Refusal(400, {"object": "error", **error_of(said), "type": "invalid_function_call"})
    return _mistral_order([message["role"] for message in body["messages"]], body["messages"][-1:])


def _call_ids(messages: Sequence[Body]) -> Iterator[str]:
    for message in messages:
        yield from (call["id"] for call in message.get("tool_calls") or ())
        if message["role"] == "tool":
            yield message["tool_call_id"]


def _mistral_extra(place: list[Any], message: Body) -> Iterator[list[Any]]:
    if message["role"] not in MISTRAL_MESSAGES:
        yield [*place, "role"]
        return
    for key in sorted(message.keys() - MISTRAL_MESSAGES[message["role"]]):
        yield [*place, key]
    for j, call in enumerate(message.get("tool_calls") or ()):
        for key in sorted(call.keys() - MISTRAL_CALL):
            yield [*place, "tool_calls", j, key]
        for key in sorted(call["function"].keys() - SDK_FUNCTION):
            yield [*place, "tool_calls", j, "function", key]


def _mistral_order(roles: list[str], last: Sequence[Body]) -> Refusal | None:
    for before, role in zip(["", *roles], roles, strict=False):
        if role not in MISTRAL_AFTER[before]:
            return _mistral_error(f"Unexpected role '{role}' after role '{before}'")
    if last and last[0]["role"] not in ("user", "tool") and not last[0].get("prefix"):
        return _mistral_error(
            "Expected last role User or Tool (or Assistant with prefix True) for serving "
            f"but got {last[0]['role']}"
        )
    return None


def _mistral_error(message: str) -> Refusal:
    error = {**error_of(message), "type": "invalid_request_message_order", "code": "3230"}
    return Refusal(400, {"object": "error", **error})


# Beyond what Google lists: taken as reported, or as its documents show them.
GEMINI_FIELDS = SAMPLING | {
    *("extra_body", "function_call", "functions", "max_completion_tokens", "messages", "presence_penalty"),
    *("reasoning_effort", "response_format", "stream_options", "tool_choice", "tools", "web_search_options"),
}


def _gemini(body: Body) -> Refusal | None:
    unknown = [(key, "") for key in sorted(body.keys() - GEMINI_FIELDS)]
    for place, key in unknown_keys(body["messages"]):
        if key != "name" and not (key == "extra_content" and ".tool_calls." in place):
            unknown.append((key, f" at '{place}'"))
    for message in body["messages"]:
        for call in message.get("tool_calls") or ():
            extra = call.get("extra_content", {"google": {"thought_signature": ""}})
            unknown += [(key, " at 'extra_content'") for key in extra.keys() - {"google"}]
            unknown += [(key, " at 'google'") for key in extra["google"].keys() - {"thought_signature"}]
    if unknown:
        said = "Invalid JSON payload received. Unknown name"
        return _gemini_error("\n".join(f'{said} "{key}"{at}: Cannot find field.' for key, at in unknown))
    last = body["messages"][-1] if body["messages"] else {"role": "none"}
    if last["role"] not in ("user", "tool") and not last.get("tool_calls"):
        return _gemini_error(
            "Please ensure that multiturn requests end with a user role or a function response"
        )
    return None


def _gemini_error(message: str) -> Refusal:
    return Refusal(400, [{"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}])


def _anthropic(body: Body) -> Refusal | None:
    if body.get("n") not in (None, 1):
        return _anthropic_error("n: Input should be 1")
    # The endpoint takes the system messages out before the model's own rules are applied.
    spoken = [m for m in body["messages"] if m["role"] not in ("system", "developer")]
    if not spoken:
        return _anthropic_error("messages: at least one message is required")
    if spoken[0]["role"] != "user":
        return _anthropic_error('messages: first message must use the "user" role')
    if spoken[-1]["role"] == "assistant" and not spoken[-1].get("tool_calls"):
        return _anthropic_error(
            "This model does not support assistant message prefill. "
            "The conversation must end with a user message."
        )
    return tool_pairs(body)


def _anthropic_error(message: str) -> Refusal:
    return Refusal(400, {"error": {**error_of(message), "code": "invalid_request_error"}})


def _vllm(body: Body) -> Refusal | None:
    """The server ignores unknown names; the strictest of the common chat templates do not ignore order."""
    roles = [message["role"] for message in body["messages"]]
    if "system" in roles[1:] or "developer" in roles:
        return _vllm_error("System message must be at the beginning.")
    if any(m["role"] == "user" and "name" in m for m in body["messages"]):
        return _vllm_error("messages.user.name: Extra inputs are not permitted")
    spoken = roles[roles[:1].count("system") :]
    plain = "tool" not in roles and not any(m.get("tool_calls") for m in body["messages"])
    if plain and any((role == "user") != (i % 2 == 0) for i, role in enumerate(spoken)):
        return _vllm_error("Conversation roles must alternate user/assistant/user/assistant/...")
    return None


def _vllm_error(message: str) -> Refusal:
    return Refusal(400, {"error": {**error_of(message), "type": "BadRequestError", "code": 400}})


JUDGES: Mapping[str, Judge] = {
    "anthropic": _anthropic,
    "azure": azure,
    "cerebras": _cerebras,
    "gemini": _gemini,
    "groq": _groq,
    "mistral": _mistral,
    # It refuses no order, but the templates of its models are those of vLLM's.
    "ollama": _vllm,
    "openai": openai,
    "vllm": _vllm,
}
