"""A model that uses hardly any CPU, since its answers are made in advance.

python -m bench.model PORT

The model name in the request selects the answer: ``paced-32-20`` streams 32 deltas, 20 ms apart, the first at
once, and each delta contains the microsecond at which it was sent. ``delta-10`` is one delta of 10 MB,
``stream-60`` a stream of 60 MB in deltas of 10 KB, ``whole-60`` a whole answer of 60 MB, and ``noted`` notes
no facts. ``brief-32`` is a whole answer of 32 words.
"""

import asyncio
import gc
import json
import re
import sys
import time
from functools import cache
from typing import NamedTuple, cast

import uvloop

_NAME = re.compile(rb'"model"\s*:\s*"paced-(\d+)-(\d+)"')
_LARGE = re.compile(rb'"model"\s*:\s*"delta-(\d+)"')
_STREAMED = re.compile(rb'"model"\s*:\s*"stream-(\d+)"')
_WHOLE = re.compile(rb'"model"\s*:\s*"whole-(\d+)"')
_BRIEF = re.compile(rb'"model"\s*:\s*"brief-(\d+)"')
_NOTED = re.compile(rb'"model"\s*:\s*"noted"')
_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_MARK = b"@" + b"0" * 16
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_USAGE = {"prompt_tokens": 800, "completion_tokens": 32, "total_tokens": 832}


class Answer(NamedTuple):
    """The pieces of an answer, and the seconds between two."""

    pieces: list[bytes]
    tail: bytes
    pause: float


@cache
def answer(count: int, milliseconds: int) -> Answer:
    """Returns the answer of the model with this name."""
    role = _event({"role": "assistant", "content": ""})
    pieces = [_chunk(_event({"content": f"word {i} {_MARK.decode()}"})) for i in range(count)]
    pieces[0] = _HEAD + _chunk(role) + pieces[0]
    tail = _event({}, "stop") + _data({**_base(), "choices": [], "usage": _USAGE}) + b"data: [DONE]\n\n"
    return Answer(pieces, _chunk(tail) + b"0\r\n\r\n", milliseconds / 1000)


@cache
def noted() -> Answer:
    """Returns the answer to a request for facts or notes."""
    whole = _HEAD + _chunk(_event({"role": "assistant", "content": '{"facts": []}'}))
    return Answer([whole], answer(1, 0).tail, 0)


@cache
def large(megabytes: int) -> Answer:
    """Returns an answer of one delta."""
    whole = _HEAD + _chunk(_event({"role": "assistant", "content": "word " * (200_000 * megabytes)}))
    return Answer([whole], answer(1, 0).tail, 0)


@cache
def streamed(megabytes: int) -> Answer:
    """Returns an answer of this many megabytes, in deltas of ten kilobytes."""
    piece = _chunk(_event({"content": "word " * 2_000}))
    whole = _HEAD + _chunk(_event({"role": "assistant", "content": "So: "})) + piece * (100 * megabytes)
    return Answer([whole], answer(1, 0).tail, 0)


@cache
def completion(words: int) -> Answer:
    """Returns an answer that is not streamed."""
    message = {"role": "assistant", "content": "word " * words}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = json.dumps({**_base(), "object": "chat.completion", "choices": [choice], "usage": _USAGE}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    return Answer([head + body], b"", 0)


def _answer_to(request: bytes) -> Answer:
    if name := _NAME.search(request):
        return answer(*map(int, name.groups()))
    if delta := _LARGE.search(request):
        return large(int(delta[1]))
    if stream := _STREAMED.search(request):
        return streamed(int(stream[1]))
    if whole := _WHOLE.search(request):
        return completion(200_000 * int(whole[1]))
    if brief := _BRIEF.search(request):
        return completion(int(brief[1]))
    return noted() if _NOTED.search(request) else answer(1, 0)


def _base() -> dict[str, object]:
    return {
        "id": "chatcmpl-bench",
        "object": "chat.completion.chunk",
        "created": 1790000000,
        "model": "paced",
    }


def _event(delta: dict[str, str], finish: str | None = None) -> bytes:
    return _data({**_base(), "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def _data(chunk: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Model(asyncio.Protocol):
    """Answers the requests of one connection."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._received = bytearray()
        self._due = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Stores the connection."""
        self._transport = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's own word
        """Stops the answer under way."""
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """Answers as soon as a request is complete."""
        self._received += data
        if not self._due:
            head, found, _ = self._received.partition(b"\r\n\r\n")
            if not found:
                return
            length = _LENGTH.search(head)
            self._due = len(head) + len(found) + int(length[1] if length else 0)
        if len(self._received) < self._due:
            return
        reply = _answer_to(bytes(self._received))
        self._received, self._due = bytearray(), 0
        self._say(reply, 0, asyncio.get_running_loop().time())

    def _say(self, reply: Answer, place: int, began: float) -> None:
        if self._transport is None:
            return
        stamp = b"@%016d" % (time.monotonic_ns() // 1000)
        said = reply.pieces[place].replace(_MARK, stamp)
        if place + 1 == len(reply.pieces):
            self._transport.write(said + reply.tail)
            return
        self._transport.write(said)
        due = began + (place + 1) * reply.pause
        asyncio.get_running_loop().call_at(due, self._say, reply, place + 1, began)


async def serve(port: int) -> None:
    """Serves until it is stopped."""
    server = await asyncio.get_running_loop().create_server(Model, "127.0.0.1", port, backlog=2048)
    gc.freeze()
    gc.disable()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
