"""A model to practise with: it answers as OpenAI's endpoint does, and tells what it was shown."""

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Self
from uuid import uuid4

import msgspec

from proxy.errors import MethodNotAllowed, NotFound, RequestError, UpstreamTimeout

Headers = Sequence[tuple[bytes, bytes]]
MODEL: Final = "practice"
_MOST_CHOICES = 8
_DONE = b"data: [DONE]\n\n"
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


_LISTED = {"id": MODEL, "object": "model", "created": 0, "owned_by": "turnkeeper"}


class PracticeModel:
    """An upstream within the process; ``pause`` is the time between two deltas, in seconds."""

    def __init__(self, *, pause: float = 0.02) -> None:
        self._pause = pause

    async def open(
        self,
        method: str,
        path: str,
        headers: Headers,  # noqa: ARG002 - whoever calls is answered
        body: bytes,
        *,
        due: float,
    ) -> "PracticeResponse":
        """The answer to one request; ``due`` is a time of the running loop's clock, as in ``Answer.due``."""
        try:
            return self._answer(method, path.partition("?")[0].rstrip("/"), body, due)
        except RequestError as error:
            return PracticeResponse.whole(error.body(), due, error.status)

    async def keep_warm(self) -> None:
        """Needs no connection."""

    async def aclose(self) -> None:
        """Nothing stays open."""

    def _answer(self, method: str, path: str, body: bytes, due: float) -> "PracticeResponse":
        if path.endswith("/models"):
            _expect(method, "GET")
            return PracticeResponse.whole(msgspec.json.encode({"object": "list", "data": [_LISTED]}), due)
        if not path.endswith("/chat/completions"):
            raise NotFound(
                f"The practice model knows no path {path!r}; it has /chat/completions and /models."
            )
        _expect(method, "POST")
        completion = Completion.asked(body)
        if not completion.stream:
            return PracticeResponse.whole(msgspec.json.encode(completion.whole()), due)
        return PracticeResponse(
            200, "text/event-stream; charset=utf-8", completion.events(), due, pause=self._pause
        )


class PracticeResponse:
    """An answer that arrives piece by piece; each piece of a stream is whole events."""

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
    def whole(cls, body: bytes, due: float, status: int = 200) -> Self:
        """An answer in one piece of JSON."""
        answer = cls(status, "application/json", iter((body,)), due)
        answer.headers = [*answer.headers, (b"content-length", str(len(body)).encode())]
        return answer

    async def read(self) -> bytes:
        """The next piece, empty at the end and once closed; ``UpstreamTimeout`` when it would be too late."""
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

    def offer(self, take: Callable[[bytes], bool]) -> None:
        """Whoever wants an answer reads it."""

    def due(self, at: float) -> None:
        """From now on a read that is not done ``at`` this time of the loop's clock is too late."""
        self._due = at

    def close(self) -> None:
        """End the answer now, also for a read that waits."""
        if not self._closed.done():
            self._closed.set_result(None)


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """What is answered to one request, and in which form."""

    id: str
    created: int
    model: str
    text: str
    choices: int
    usage: dict[str, int]
    stream: bool
    include_usage: bool

    @classmethod
    def asked(cls, body: bytes) -> Self:
        """The answer to a request's body; ``RequestError`` when it is none."""
        request = _request(body)
        text = describe_request(request)
        choices = _choices(request.get("n"))
        options = request.get("stream_options")
        return cls(
            id=f"chatcmpl-{uuid4().hex}",
            created=int(time.time()),
            model=request["model"] if isinstance(request.get("model"), str) else MODEL,
            text=text,
            choices=choices,
            usage=_usage(request["messages"], text, choices),
            stream=request.get("stream") is True,
            include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        )

    def whole(self) -> dict[str, Any]:
        """The answer as one object."""
        message = {"role": "assistant", "content": self.text, "refusal": None}
        choices = [
            {"index": index, "message": message, "logprobs": None, "finish_reason": "stop"}
            for index in range(self.choices)
        ]
        return {**self._envelope("chat.completion", choices), "usage": self.usage}

    def events(self) -> Iterator[bytes]:
        """The answer as the events of a stream, in the order in which OpenAI sends them."""
        yield self._deltas({"role": "assistant", "content": "", "refusal": None})
        for piece in pieces(self.text):
            yield self._deltas({"content": piece})
        yield self._deltas({}, finish="stop")
        if self.include_usage:
            yield _event({**self._envelope("chat.completion.chunk", []), "usage": self.usage})
        yield _DONE

    def _deltas(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        return b"".join(self._delta(index, delta, finish) for index in range(self.choices))

    def _delta(self, index: int, delta: dict[str, Any], finish: str | None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        chunk = self._envelope("chat.completion.chunk", [choice])
        return _event({**chunk, "usage": None} if self.include_usage else chunk)

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**head, "system_fingerprint": "practice", "choices": choices}


def _expect(method: str, allowed: str) -> None:
    if method != allowed:
        raise MethodNotAllowed(f"This path takes {allowed}, not {method}.", allow=allowed)


def _request(body: bytes) -> dict[str, Any]:
    try:
        request = msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RequestError("The body is not JSON that can be read.") from error
    messages = request.get("messages") if isinstance(request, dict) else None
    if not isinstance(messages, list) or not messages:
        raise RequestError("'messages' has to be a list with a message in it.", param="messages")
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RequestError("A message is an object with a role.", param=f"messages[{i}]")
    return {**request, "messages": messages}


def _choices(asked: object) -> int:
    return max(1, min(asked, _MOST_CHOICES)) if isinstance(asked, int) else 1


def _usage(messages: list[dict[str, Any]], text: str, choices: int) -> dict[str, int]:
    prompt = sum(map(tokens, messages))
    completion = choices * tokens({"content": text})
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def describe_request(request: dict[str, Any]) -> str:
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
