"""A voice platform, which sends the requests of a call turn by turn, and reads the answers."""

import asyncio
import json
import random
import re
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

TURNS = 16
SHOWN = 25
"""The number of messages in a window."""
SYSTEM: Final = {
    "role": "system",
    "content": "You are a helpful voice assistant. Keep answers short. " * 4,
}
_WORDS = ("please", "tell", "me", "about", "the", "größte", "Lissabon", "weather", "tomorrow", "morning")
_CONTENT = re.compile(rb'"content": ?"((?:[^"\\\\]|\\\\.)*)"')
_STAMP = re.compile(rb"@(\d{16})")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def windows(seed: int = 7) -> list[list[dict[str, Any]]]:
    """Returns the requests of a call in Agora's form: a system message and the newest 25 messages."""
    dice = random.Random(seed)
    talk = [_message(place, dice) for place in range(SHOWN + 2 * TURNS)]
    return [[SYSTEM, *talk[2 * turn : 2 * turn + SHOWN]] for turn in range(TURNS)]


def _message(place: int, dice: random.Random) -> dict[str, Any]:
    user = place % 2 == 0
    return {
        "role": "user" if user else "assistant",
        "turn_id": place // 2,
        "timestamp": 1790000000000 + place * 2500,
        "metadata": {"source": "asr" if user else "llm"},
        "content": " ".join(dice.choices(_WORDS, k=dice.randint(6, 40))),
    }


class Reply(NamedTuple):
    """Times of one answer in seconds: until the first delta, and of each delta since it was sent."""

    first: float
    lags: Sequence[float]


class Line(asyncio.Protocol):
    """One persistent connection to the proxy, or to the model."""

    def __init__(self, host: str, port: int) -> None:
        self.received: list[bytes] = []
        """The last answer, head included."""
        self._host, self._port = host, port
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Reply] | None = None
        self._began = 0.0
        self._first = 0.0
        self._lags: list[float] = []
        self._rest = b""
        self._missing: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Stores the connection."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fails the request under way."""
        self._transport = None
        if self._answer and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("The connection was closed."))

    def data_received(self, data: bytes) -> None:
        """Notes the time of each delta, and the end of the answer."""
        now = time.monotonic()
        if not self.received:
            head = data.partition(b"\r\n\r\n")[0]
            length = _LENGTH.search(head)  # of an answer that is no stream
            self._missing = len(head) + 4 + int(length[1]) if length else None
        self.received.append(data)
        whole = self._rest + data
        end = 0
        for stamp in _STAMP.finditer(whole):
            self._lags.append(now - int(stamp[1]) / 1e6)
            self._first = self._first or now
            end = stamp.end()
        self._rest = whole[max(end, len(whole) - 40) :]
        if self._missing is None:
            ended = self._rest.endswith(b"0\r\n\r\n")
        else:
            self._missing -= len(data)
            ended = self._missing <= 0
        if ended and self._answer and not self._answer.done():
            self._answer.set_result(Reply((self._first or now) - self._began, tuple(self._lags)))

    async def ask(self, body: bytes, headers: str) -> Reply:
        """Sends a request, and reads the whole answer. Raises OSError and TimeoutError."""
        loop = asyncio.get_running_loop()
        if self._transport is None:
            await loop.create_connection(lambda: self, self._host, self._port)
        transport = cast("asyncio.Transport", self._transport)
        self._answer = loop.create_future()
        self._first, self._lags, self._rest, self._missing = 0.0, [], b"", None
        self.received.clear()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n{headers}"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._began = time.monotonic()
        transport.write(head.encode() + body)
        return await asyncio.wait_for(self._answer, 30)

    def close(self) -> None:
        """Closes the connection."""
        if self._transport:
            self._transport.close()


def body(messages: Sequence[dict[str, Any]], model: str, *, stream: bool = True) -> bytes:
    """Returns a request as it is posted; the model's name selects the answer."""
    call = {"model": model, "messages": messages, "stream": stream, "turn_id": messages[-1]["turn_id"]}
    return json.dumps(call, ensure_ascii=False).encode()


class Conversation:
    """A call, which replays its newest messages and answers.

    ``joined`` is whether it has earlier messages that the proxy has not seen. ``headers`` are sent with each
    request.
    """

    def __init__(
        self, line: Line, model: str, headers: str, *, joined: bool = False, stream: bool = True
    ) -> None:
        self._line, self._model, self._headers, self._stream = line, model, headers, stream
        self._messages: list[dict[str, Any]] = [*_BEFORE] if joined else []

    async def turn(self) -> Reply:
        """Sends the next words of the user, and reads the answer. Raises OSError and TimeoutError."""
        place = len(self._messages)
        words = _OF_USERS[place // 2 % len(_OF_USERS)]
        self._messages.append({**words, "content": f"{words['content']} {place}", **_place(place)})
        window = [SYSTEM, *self._messages[-SHOWN:]]
        reply = await self._line.ask(body(window, self._model, stream=self._stream), self._headers)
        answer = {"role": "assistant", "content": self._text(), "metadata": {"source": "llm"}}
        self._messages.append({**answer, **_place(place + 1)})
        return reply

    def _text(self) -> str:
        received = b"".join(self._line.received)
        if not self._stream:
            whole = json.loads(received.partition(b"\r\n\r\n")[2])
            return str(whole["choices"][0]["message"]["content"])
        return "".join(json.loads(b'"%s"' % text, strict=False) for text in _CONTENT.findall(received))


def _place(place: int) -> dict[str, int]:
    return {"turn_id": place // 2, "timestamp": 1790000000000 + place * 2500}


_BEFORE = windows()[0][1:SHOWN]
_OF_USERS = [message for window in windows()[::8] for message in window if message["role"] == "user"]
