"""A voice engine: what it posts, turn by turn, and how it reads the answer."""

import asyncio
import json
import random
import re
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

TURNS = 16
SHOWN = 25
"""How many messages a window shows."""
SYSTEM: Final = {
    "role": "system",
    "content": "You are a helpful voice assistant. Keep answers short. " * 4,
}
_WORDS = ("please", "tell", "me", "about", "the", "größte", "Lissabon", "weather", "tomorrow", "morning")
_STAMP = re.compile(rb"@(\d{16})")


def windows(seed: int = 7) -> list[list[dict[str, Any]]]:
    """A conversation in Agora's shape: each window shows the newest 25 messages, and a system message."""
    dice = random.Random(seed)
    talk = [_said(place, dice) for place in range(SHOWN + 2 * TURNS)]
    return [[SYSTEM, *talk[2 * turn : 2 * turn + SHOWN]] for turn in range(TURNS)]


def _said(place: int, dice: random.Random) -> dict[str, Any]:
    user = place % 2 == 0
    return {
        "role": "user" if user else "assistant",
        "turn_id": place // 2,
        "timestamp": 1790000000000 + place * 2500,
        "metadata": {"source": "asr", "user": "u-1"} if user else {"source": "llm"},
        "content": " ".join(dice.choices(_WORDS, k=dice.randint(6, 40))),
    }


class Heard(NamedTuple):
    """How one answer came: seconds to the first delta, and each delta's seconds on its way from the model."""

    first: float
    lags: Sequence[float]


class Line(asyncio.Protocol):
    """One kept connection to the proxy, or to the model. ``kept``, where it is a list, takes each answer."""

    def __init__(self, host: str, port: int) -> None:
        self.kept: list[bytes] | None = None
        self._host, self._port = host, port
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Heard] | None = None
        self._began = 0.0
        self._first = 0.0
        self._lags: list[float] = []
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes the connection."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """A lost connection fails what was asked over it."""
        self._transport = None
        if self._answer and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("The connection was closed."))

    def data_received(self, data: bytes) -> None:
        """Notes when each delta came, and whether it was the last."""
        now = time.monotonic()
        if self.kept is not None:
            self.kept.append(data)
        whole = self._rest + data
        end = 0
        for stamp in _STAMP.finditer(whole):
            self._lags.append(now - int(stamp[1]) / 1e6)
            self._first = self._first or now
            end = stamp.end()
        self._rest = whole[max(end, len(whole) - 40) :]
        if self._rest.endswith(b"0\r\n\r\n") and self._answer and not self._answer.done():
            self._answer.set_result(Heard(self._first - self._began, tuple(self._lags)))

    async def ask(self, body: bytes, headers: str) -> Heard:
        """One answer, heard to its end. Raises OSError and TimeoutError."""
        loop = asyncio.get_running_loop()
        if self._transport is None:
            await loop.create_connection(lambda: self, self._host, self._port)
        transport = cast("asyncio.Transport", self._transport)
        self._answer = loop.create_future()
        self._first, self._lags, self._rest = 0.0, [], b""
        if self.kept is not None:
            self.kept.clear()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n{headers}"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._began = time.monotonic()
        transport.write(head.encode() + body)
        return await asyncio.wait_for(self._answer, 30)

    def close(self) -> None:
        """Hangs up."""
        if self._transport:
            self._transport.close()


def body(messages: Sequence[dict[str, Any]], model: str) -> bytes:
    """A request as it is posted; the model's name says how it answers."""
    call = {"model": model, "messages": messages, "stream": True, "turn_id": messages[-1]["turn_id"]}
    return json.dumps(call, ensure_ascii=False).encode()
