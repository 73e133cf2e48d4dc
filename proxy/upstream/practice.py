"""The practice model, which answers like OpenAI's endpoint and describes the request in its answer.

For a required function call or a response format, it makes a minimal instance of the schema.
"""

import asyncio
import re
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, Self
from uuid import uuid4

import msgspec

from proxy.answer.response import Headers, Response
from proxy.answer.transcript import object_in
from proxy.errors import MethodNotAllowed, NotFound, RequestError, UpstreamTimeout
from proxy.upstream.json_instance import minimal_instance
from proxy.upstream.providers import OPENAI

MODEL: Final = "practice"
TOP_LEVEL: Final = OPENAI.fields | {"messages"}
IN_MESSAGES: Final = frozenset({"role"}).union(*OPENAI.messages.values())

_LISTED: Final = {"id": MODEL, "object": "model", "created": 0, "owned_by": "turnkeeper"}
_MOST_CHOICES = 8
_DONE = b"data: [DONE]\n\n"

_FIRST, _LAST = 3, 9  # filters inject at both ends
_LINE, _NAME, _NAMES = 420, 40, 20
_FEW_WORDS = re.compile(r"(?:\S+\s*){1,3}")
_FEW_CHARACTERS = re.compile(r"[\s\S]{1,12}")
_CONTROL = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")  # terminals interpret control characters
_PARTS = {"image_url": "[image]", "input_audio": "[audio]"}
_CHARACTERS_PER_TOKEN = 4


class PracticeModel:
    """An upstream within the process; ``pause`` is the time between two deltas, in seconds."""

    def __init__(self, *, pause: float = 0.02) -> None:
        self._pause = pause

    async def open(
        self,
        method: str,
        path: str,
        headers: Headers,  # noqa: ARG002 - no key is needed
        body: bytes,
        *,
        due: float,
    ) -> "PracticeResponse":
        """Returns the response to one request; ``due`` is its deadline in loop time."""
        path = path.partition("?")[0].rstrip("/")
        try:
            if path.endswith("/models"):
                _check_method(method, "GET")
                models = {"object": "list", "data": [_LISTED]}
                return PracticeResponse.of_json(msgspec.json.encode(models), due)
            if path.endswith("/chat/completions"):
                _check_method(method, "POST")
                completion = Completion(body)
            else:
                raise NotFound(
                    f"The practice model knows no path {path!r}; it has /chat/completions and /models."
                )
        except RequestError as error:
            return PracticeResponse.of_json(error.body(), due, error.status)
        if not completion.stream:
            return PracticeResponse.of_json(msgspec.json.encode(completion.as_dict()), due)
        return PracticeResponse(
            200, "text/event-stream; charset=utf-8", completion.events(), due, pause=self._pause
        )

    async def keep_warm(self) -> None:
        """Returns at once, since there is no connection."""

    async def aclose(self) -> None:
        """Returns at once, since nothing is open."""


class PracticeResponse(Response):
    """A response that arrives in pieces; each piece of a stream has whole events."""

    def __init__(
        self, status: int, content_type: str, parts: Iterator[bytes], due: float, *, pause: float = 0.0
    ) -> None:
        self.status = status
        self.headers: Headers = [(b"content-type", content_type.encode())]
        self._parts = parts
        self._next = next(parts)
        self._pause = 0.0  # the first piece does not wait
        self._between = pause
        self._due = due
        self._closed = asyncio.get_running_loop().create_future()

    @classmethod
    def of_json(cls, body: bytes, due: float, status: int = 200) -> Self:
        """Returns a response with a whole JSON body."""
        response = cls(status, "application/json", iter((body,)), due)
        response.headers = [*response.headers, (b"content-length", str(len(body)).encode())]
        return response

    async def read(self) -> bytes:
        """Returns the next piece, b"" at the end and once closed; raises UpstreamTimeout if it is late."""
        if not self._next or self._closed.done():
            return b""
        left = self._due - asyncio.get_running_loop().time()
        await asyncio.wait((self._closed,), timeout=max(0.0, min(self._pause, left)))
        if self._closed.done():
            return b""
        if left <= self._pause:
            raise UpstreamTimeout("The practice model was too late.")
        piece, self._next, self._pause = self._next, next(self._parts, b""), self._between
        return piece

    def due(self, at: float) -> None:
        """Sets the deadline."""
        self._due = at

    def close(self) -> None:
        """Ends the response; a waiting read returns b""."""
        if not self._closed.done():
            self._closed.set_result(None)


class Completion:
    """The answer to a chat request, whole or as events; raises RequestError for an invalid body."""

    def __init__(self, body: bytes) -> None:
        try:
            request = msgspec.json.decode(body)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise RequestError("The body is not JSON that can be read.") from error
        messages = request.get("messages") if isinstance(request, dict) else None
        if not isinstance(messages, list) or not messages:
            raise RequestError("'messages' must be a list with at least one message.", param="messages")
        for i, message in enumerate(messages):
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise RequestError("A message is an object with a role.", param=f"messages[{i}]")
        model, n, options = request.get("model"), request.get("n"), request.get("stream_options")
        self.stream = request.get("stream") is True
        self._id, self._created = f"chatcmpl-{uuid4().hex}", int(time.time())
        self._model = model if isinstance(model, str) else MODEL
        self._call = _required_call(request)
        self._text = ""
        if not self._call:
            self._text = _formatted(request.get("response_format")) or describe_request(request)
        self._choices = max(1, min(n, _MOST_CHOICES)) if isinstance(n, int) else 1
        self._counts_usage = isinstance(options, dict) and options.get("include_usage") is True
        prompt = sum(map(_tokens, messages))
        words = self._call.arguments if self._call else self._text
        answer = self._choices * _tokens({"content": words})
        self._usage = {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
        }

    def as_dict(self) -> dict[str, Any]:
        """Returns the answer as one object."""
        message: dict[str, Any] = {"role": "assistant", "content": self._text, "refusal": None}
        if self._call:
            message |= {"content": None, **self._call.as_fields(self._call.arguments)}
        choices = [
            {"index": index, "message": message, "logprobs": None, "finish_reason": self._finish}
            for index in range(self._choices)
        ]
        return {**self._envelope("chat.completion", choices), "usage": self._usage}

    def events(self) -> Iterator[bytes]:
        """Yields the answer as the events of a stream, in OpenAI's order."""
        if self._call:
            start = self._call.as_fields("", index=0)
            yield self._deltas({"role": "assistant", "content": None, "refusal": None, **start})
            for piece in _FEW_CHARACTERS.findall(self._call.arguments):
                yield self._deltas(self._call.as_delta(piece))
        else:
            yield self._deltas({"role": "assistant", "content": "", "refusal": None})
            for words in _FEW_WORDS.findall(self._text):
                yield self._deltas({"content": words})
        yield self._deltas({}, finish=self._finish)
        if self._counts_usage:
            yield _event({**self._envelope("chat.completion.chunk", []), "usage": self._usage})
        yield _DONE

    @property
    def _finish(self) -> str:
        return self._call.finish if self._call else "stop"

    def _deltas(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        """Returns one event with this delta for each choice."""
        deltas = []
        for index in range(self._choices):
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
            chunk = self._envelope("chat.completion.chunk", [choice])
            deltas.append(_event({**chunk, "usage": None} if self._counts_usage else chunk))
        return b"".join(deltas)

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": self._id, "object": kind, "created": self._created, "model": self._model}
        return {**head, "system_fingerprint": "practice", "choices": choices}


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a function or of a custom tool; ``kind`` is "function_call" for the form before tools."""

    kind: str
    name: str
    arguments: str
    id: str

    @property
    def finish(self) -> str:
        """The finish reason of an answer that makes this call."""
        return "function_call" if self.kind == "function_call" else "tool_calls"

    def as_fields(self, arguments: str, **index: int) -> dict[str, Any]:
        """Returns the fields with the call in a message, or in its first delta."""
        called = {"name": self.name, self._arguments: arguments}
        if self.kind == "function_call":
            return {self.kind: called}
        return {"tool_calls": [{**index, "id": self.id, "type": self.kind, self.kind: called}]}

    def as_delta(self, piece: str) -> dict[str, Any]:
        """Returns a later delta, with a piece of the arguments."""
        if self.kind == "function_call":
            return {self.kind: {"arguments": piece}}
        return {"tool_calls": [{"index": 0, self.kind: {self._arguments: piece}}]}

    @property
    def _arguments(self) -> str:
        return "input" if self.kind == "custom" else "arguments"


def _required_call(request: dict[str, Any]) -> ToolCall | None:
    """Returns the call that ``tool_choice`` or ``function_call`` requires; ``None`` if none is required.

    Raises RequestError if the call cannot be made.
    """
    tools = _objects(request.get("tools"))
    choice, param = request.get("tool_choice"), "tool_choice"
    if choice is None and isinstance(request.get("function_call"), dict):
        choice, param = {"type": "function", "function": request["function_call"]}, "function_call"
        functions = _objects(request.get("functions"))
        tools = [{"type": "function", "function": function} for function in functions]
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = object_in(choice, "allowed_tools")
        names = [_tool_name(tool) for tool in _objects(allowed.get("tools"))]
        tools = [tool for tool in tools if _tool_name(tool) in names]
        choice = allowed.get("mode")
    name = _tool_name(choice) if isinstance(choice, dict) else None
    if choice != "required" and name is None:
        return None
    tool = next((tool for tool in tools if _tool_name(tool) and name in (None, _tool_name(tool))), None)
    if tool is None:
        chosen = "a tool" if name is None else f"{name!r}"
        raise RequestError(f"'{param}' requires {chosen}, which is not among the tools.", param=param)
    kind = tool["type"]
    definition = tool[kind]
    arguments = ""
    if kind == "function":
        arguments = _instance(definition.get("parameters") or {"type": "object"}, "tools")
    kind = "function_call" if param == "function_call" else kind
    return ToolCall(kind, definition["name"], arguments, f"call_{uuid4().hex[:24]}")


def _formatted(response_format: object) -> str:
    """Returns minimal JSON for a response format; empty if that is text."""
    if not isinstance(response_format, dict):
        return ""
    match response_format.get("type"):
        case "json_object":
            return "{}"
        case "json_schema":
            return _instance(object_in(response_format, "json_schema").get("schema", {}), "response_format")
        case _:
            return ""


def _instance(schema: object, param: str) -> str:
    try:
        return msgspec.json.encode(minimal_instance(schema)).decode()
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"The practice model has no instance of this schema: {error}.", param=param
        ) from None


def _objects(items: object) -> list[dict[str, Any]]:
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _tool_name(tool: dict[str, Any]) -> str | None:
    name = object_in(tool, str(tool.get("type"))).get("name")
    return name if isinstance(name, str) else None


def _check_method(method: str, allowed: str) -> None:
    if method != allowed:
        raise MethodNotAllowed(f"This path takes {allowed}, not {method}.", allow=allowed)


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def describe_request(request: dict[str, Any]) -> str:
    """Describes a chat request in a few lines: its messages, tools, and fields unknown to OpenAI."""
    messages = request["messages"]
    hidden = len(messages) - _FIRST - _LAST
    lines = [f"This is the practice model. I was shown {_counted(len(messages), 'message')}."]
    if hidden <= 0:
        lines += map(_line, messages)
    else:
        lines += map(_line, messages[:_FIRST])
        lines.append(f"({_counted(hidden, 'more message')} here)")
        lines += map(_line, messages[-_LAST:])
    if tools := _tool_names(request.get("tools")):
        lines.append(f"I could call {tools}.")
    if unknown := _listing(sorted(request.keys() - TOP_LEVEL)):
        lines.append(f"A strict model would refuse these fields of the request: {unknown}.")
    if unknown := _listing(sorted(set().union(*messages) - IN_MESSAGES)):
        lines.append(f"A strict model would refuse these fields of messages: {unknown}.")
    lines.append("To talk to a real model, set UPSTREAM_BASE_URL.")
    return "\n".join(lines)


def _line(message: dict[str, Any]) -> str:
    speaker = _cut(message["role"], _NAME)
    if isinstance(message.get("name"), str):
        speaker += f" {_cut(message['name'], _NAME)}"
    text = _text(message)
    contents = [f'"{_cut(text, _LINE)}"'] if text else []
    if calls := _tool_names(message.get("tool_calls")):
        contents.append(f"[calls {calls}]")
    return f"{speaker}: {' '.join(contents) or '[nothing]'}"


def _tokens(message: dict[str, Any]) -> int:
    """Returns the approximate number of tokens of a message, at least one."""
    return 1 + len(_text(message)) // _CHARACTERS_PER_TOKEN


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return " ".join(map(_part, content))
    return content if isinstance(content, str) else ""


def _part(part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, dict) and isinstance(text := part.get(str(kind)), str):
        return text  # a text, or a refusal
    return _PARTS.get(str(kind), f"[{_cut(kind, _NAME)}]" if isinstance(kind, str) else "[something]")


def _tool_names(tools: object) -> str:
    functions = [tool.get("function") for tool in _objects(tools)]
    return _listing(str(function.get("name")) for function in functions if isinstance(function, dict))


def _listing(names: Iterable[str]) -> str:
    every = list(names)
    first = [_cut(name, _NAME) for name in every[:_NAMES]]
    return ", ".join(first if len(every) <= _NAMES else [*first, f"{len(every) - _NAMES} more"])


def _cut(text: str, most: int) -> str:
    """Returns the text on one line, cut between words in its middle.

    It is cut first, so that long texts cost nothing.
    """
    if len(text) > most:
        begin, end = text[: most * 2 // 3], text[-(most // 3) :]
        text = f"{begin.rpartition(' ')[0] or begin} … {end.partition(' ')[2] or end}"
    return _CONTROL.sub(" ", text).strip()


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
