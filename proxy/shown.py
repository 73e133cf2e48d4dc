"""What a model was shown, told in plain sentences."""

import re
from collections.abc import Iterable
from typing import Any, Final

TOP_LEVEL: Final = frozenset(
    """
    audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens
    max_tokens messages metadata modalities model moderation n parallel_tool_calls prediction
    presence_penalty prompt_cache_key prompt_cache_options prompt_cache_retention reasoning_effort
    response_format safety_identifier seed service_tier stop store stream stream_options temperature
    tool_choice tools top_logprobs top_p user verbosity web_search_options
    """.split()  # noqa: SIM905 - a line for each of them would be half the file
)
IN_MESSAGES: Final = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "refusal", "audio", "function_call"}
)

_FIRST, _LAST = 3, 9  # what filters inject stands at either end
_LINE, _NAME, _NAMES = 240, 40, 20
_FEW_WORDS = re.compile(r"(?:\S+\s*){1,3}")
_CONTROL = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")  # a terminal would act on them
_PARTS = {"image_url": "[image]", "input_audio": "[audio]"}
_CHARACTERS_PER_TOKEN = 4


def described(request: dict[str, Any]) -> str:
    """A chat request in a few lines: its messages, tools, and fields that OpenAI does not know."""
    messages = request["messages"]
    lines = [
        f"This is the practice model. I was shown {_counted(len(messages), 'message')}.",
        *_listed(messages),
    ]
    if tools := _tool_names(request.get("tools")):
        lines.append(f"I could call {tools}.")
    if unknown := _some(sorted(request.keys() - TOP_LEVEL)):
        lines.append(f"A strict model would refuse these fields of the request: {unknown}.")
    if unknown := _some(sorted(set().union(*messages) - IN_MESSAGES)):
        lines.append(f"A strict model would refuse these fields of messages: {unknown}.")
    lines.append("To talk to a real model, set UPSTREAM_BASE_URL.")
    return "\n".join(lines)


def pieces(text: str) -> list[str]:
    """A text cut into a few words each; together they are the text."""
    return _FEW_WORDS.findall(text)


def tokens(message: dict[str, Any]) -> int:
    """About how many tokens a message costs, never none."""
    return 1 + len(_said(message)) // _CHARACTERS_PER_TOKEN


def _listed(messages: list[dict[str, Any]]) -> list[str]:
    hidden = len(messages) - _FIRST - _LAST
    if hidden <= 0:
        return [_line(message) for message in messages]
    first, last = messages[:_FIRST], messages[-_LAST:]
    between = f"({_counted(hidden, 'more message')} here)"
    return [*map(_line, first), between, *map(_line, last)]


def _line(message: dict[str, Any]) -> str:
    speaker = _short(message["role"], _NAME)
    if isinstance(message.get("name"), str):
        speaker += f" {_short(message['name'], _NAME)}"
    said = [_words(message)] if _said(message) else []
    if calls := _tool_names(message.get("tool_calls")):
        said.append(f"[calls {calls}]")
    return f"{speaker}: {' '.join(said) or '[nothing]'}"


def _words(message: dict[str, Any]) -> str:
    return f'"{_short(_said(message), _LINE)}"'


def _said(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return " ".join(map(_part, content))
    return content if isinstance(content, str) else ""


def _part(part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, dict) and isinstance(text := part.get(str(kind)), str):
        return text  # a text, or a refusal
    return _PARTS.get(str(kind), f"[{_short(kind, _NAME)}]" if isinstance(kind, str) else "[something]")


def _tool_names(tools: object) -> str:
    entries = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    functions = [entry.get("function") for entry in entries]
    return _some(str(function.get("name")) for function in functions if isinstance(function, dict))


def _some(names: Iterable[str]) -> str:
    given = list(names)
    shown = [_short(name, _NAME) for name in given[:_NAMES]]
    return ", ".join(shown if len(given) <= _NAMES else [*shown, f"{len(given) - _NAMES} more"])


def _short(text: str, most: int) -> str:
    """``text`` on one line, cut in the middle; the cut is made first, so that its length costs nothing."""
    if len(text) > most:
        text = f"{text[: most * 2 // 3]} … {text[-(most // 3) :]}"
    return _CONTROL.sub(" ", text).strip()


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
