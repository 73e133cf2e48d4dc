"""A model to practise with: it answers as OpenAI's endpoint does, and tells what it was shown."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Self
from uuid import uuid4

import msgspec

from proxy.errors import MethodNotAllowed, NotFound, RequestError, UpstreamTimeout
from proxy.shown import described, pieces, tokens

Headers = Sequence[tuple[bytes, bytes]]

MODEL: Final = "practice"
_MOST_CHOICES = 8
_LISTED = {"id": MODEL, "object": "model", "created": 0, "owned_by": "turnkeeper"}
_DONE = b"data: [DONE]\n\n"


class Practice:
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
    ) -> "PracticeAnswer":
        """The answer to one request; ``due`` is a time of the running loop's clock, as in ``Answer.due``."""
        try:
            return self._answer(method, path.partition("?")[0].rstrip("/"), body, due)
        except RequestError as error:
            return PracticeAnswer.whole(error.body(), due, error.status)

    async def keep_warm(self) -> None:
        """Needs no connection."""

    async def aclose(self) -> None:
        """Nothing stays open."""

    def _answer(self, method: str, path: str, body: bytes, due: float) -> "PracticeAnswer":
        if path.endswith("/models"):
            _expect(method, "GET")
            return PracticeAnswer.whole(msgspec.json.encode({"object": "list", "data": [_LISTED]}), due)
        if not path.endswith("/chat/completions"):
            raise NotFound(
                f"The practice model knows no path {path!r}; it has /chat/completions and /models."
            )
        _expect(method, "POST")
        completion = Completion.asked(body)
        if not completion.stream:
            return PracticeAnswer.whole(msgspec.json.encode(completion.whole()), due)
        return PracticeAnswer(
            200, "text/event-stream; charset=utf-8", completion.events(), due, pause=self._pause
        )


class PracticeAnswer:
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
        text = described(request)
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
