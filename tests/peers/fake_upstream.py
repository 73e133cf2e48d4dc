"""An OpenAI-like server that does what a test tells it to, and remembers what it was asked.

A *script* is a list of steps carried out on one connection after a request has come in whole: bytes are
written as they are, a number is waited for in seconds, ``HANG`` waits until the other side closes, ``RESET``
drops the connection, ``CLOSE`` ends it properly.
"""

import asyncio
import contextlib
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.peers.loopback_server import LoopbackServer

HANG, RESET, CLOSE = "hang", "reset", "close"
Step = bytes | float | str
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"x-ratelimit-remaining-requests: 99\r\nset-cookie: a=b\r\ntransfer-encoding: chunked\r\n\r\n"
)
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(**fields: Any) -> bytes:
    """One event of a completion stream."""
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "fake"}
    return b"data: " + json.dumps({**base, **fields}).encode() + b"\n\n"


def delta(index: int = 0, finish: str | None = None, **what: Any) -> bytes:
    """One event with one choice."""
    return event(choices=[{"index": index, "delta": what, "logprobs": None, "finish_reason": finish}])


ROLE = delta(role="assistant", content="")
DONE = b"data: [DONE]\n\n"
USAGE = event(choices=[], usage={"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7})


def stream_of(*words: str) -> bytes:
    """A whole stream, from the role to ``[DONE]``."""
    said = b"".join(delta(content=word) for word in words)
    return ROLE + said + delta(finish="stop") + USAGE + DONE


def sse(body: bytes) -> list[Step]:
    """The script that streams ``body`` in one go."""
    return [HEAD, chunk(body), END]


def answer(body: Any, status: int = 200, headers: str = "", kind: str = "application/json") -> list[Step]:
    """The script of a whole answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n{headers}\r\n"
    return [head.encode() + data]


def completion(text: str = "Hello there.") -> dict[str, Any]:
    """A whole completion."""
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    base = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "fake"}
    return {**base, "choices": [choice], "usage": usage}


@dataclass
class Received:
    """One request, and what became of its connection."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float = field(default_factory=time.monotonic)
    closed: threading.Event = field(default_factory=threading.Event)
    closed_at: float = 0.0

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Script = Callable[[Received], Iterable[Step]]


def by_default(request: Received) -> Iterable[Step]:
    """As OpenAI would, in two words."""
    if request.method == "GET":
        return answer({"object": "list", "data": [{"id": "fake", "object": "model"}]})
    choice = request.json.get("tool_choice")
    if isinstance(choice, dict):
        return calling(choice["function"]["name"], stream=request.json.get("stream") is True)
    if request.json.get("stream"):
        return sse(stream_of("Hello", " there."))
    return answer(completion())


def calling(tool: str, *, stream: bool) -> list[Step]:
    """The script of an answer that calls a tool."""
    call = {"id": "call_1", "type": "function", "function": {"name": tool, "arguments": "{}"}}
    if stream:
        return sse(ROLE + delta(tool_calls=[{"index": 0, **call}]) + delta(finish="tool_calls") + DONE)
    choice = {"index": 0, "finish_reason": "tool_calls", "logprobs": None}
    message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]}
    return answer({**completion(), "choices": [{**choice, "message": message}]})


class FakeUpstream(LoopbackServer):
    """An upstream over TLS where it is given. ``script`` may be replaced at any time."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls)
        self.script: Script = by_default
        self.requests: list[Received] = []
        self.open = 0
        self.accepted = 0

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self.address}:{self.port}/v1"

    @property
    def last(self) -> Received:
        return self.requests[-1]

    def says(self, *steps: Step) -> None:
        """Every request from now on gets these steps."""
        self.script = lambda _: steps

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.accepted += 1
        self._writers.add(writer)
        request = None
        try:
            while request := await read_request(reader):
                self.requests.append(request)
                if not await self._play(request, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            if request:
                request.closed_at = time.monotonic()
                request.closed.set()
            writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        self._writers.discard(writer)

    async def _play(
        self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        gone = asyncio.ensure_future(reader.read(1))
        try:
            for step in self.script(request):
                if gone.done():
                    return False
                if not await self._do(step, gone, writer):
                    return False
        finally:
            gone.cancel()
            await asyncio.sleep(0)
        return not (gone.done() and not gone.cancelled())

    async def _do(self, step: Step, gone: "asyncio.Future[bytes]", writer: asyncio.StreamWriter) -> bool:
        if isinstance(step, bytes):
            writer.write(step)
            await writer.drain()
        elif step == HANG:
            await gone
            return False
        elif step == RESET:
            writer.transport.abort()
            return False
        elif step == CLOSE:
            return False
        else:
            await asyncio.wait([gone], timeout=float(step))
        return True


async def read_request(reader: asyncio.StreamReader) -> Received | None:
    """The next request of a connection; ``None`` when there is no more."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.split("\r\n")
    method, path, _ = first.split(" ")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
    }
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Received(method, path, headers, body)
