"""The model's answer to one request."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from proxy.errors import UpstreamBroken, UpstreamError, UpstreamTimeout
from proxy.http1.decoding import Decoder, decoder_of
from proxy.http1.envelope import Headers

# More than this waiting to be read, and the line stops until all of it has been.
UNREAD = 1 << 17
# uvloop counts time in milliseconds: a timer may ring this much early.
_TICK = 0.001


class Carrier(Protocol):
    """The connection, as far as its answer knows it."""

    def resume(self) -> None:
        """Bytes may come again."""

    def drop(self) -> None:
        """The connection is closed at once, and tells its answer nothing more."""


class Answer:
    """One answer as it arrives: the head, then the bytes that nobody has read yet."""

    __slots__ = (
        "_chunks", "_decoder", "_due", "_fault", "_leave", "_line", "_loop", "_peer", "_rings", "_take_in",
        "_timer", "_waiter", "complete", "headers", "status", "unread",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, leave: Callable[[], None], peer: str) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.complete = False
        self.unread = 0
        self._loop = loop
        self._peer = peer
        self._leave: Callable[[], None] | None = leave
        self._line: Carrier | None = None
        self._chunks: list[bytes] = []
        self._decoder: Decoder | None = None
        self._fault: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._take_in: Callable[[bytes], bool] | None = None
        self._due = self._rings = 0.0

    # What the caller does with it.

    async def read(self) -> bytes:
        """All that has arrived since the last read, b"" at the end; may be cancelled and called again."""
        while True:
            if self._chunks or (self._decoder is not None and self._decoder.more):
                if not self._chunks:  # of little that came much is made: others have their turn in between
                    await asyncio.sleep(0)
                if data := self._take():
                    return data
            elif self._fault is not None:
                raise self._fault.with_traceback(None)
            elif self.complete:
                return self._end()
            else:
                await self._news()

    def offer(self, take: Callable[[bytes], bool]) -> None:
        """From now on `take` is asked whether it takes what arrives, before anybody is woken to read it."""
        self._take_in = take

    def due(self, at: float) -> None:
        """An answer that is not whole when loop.time() passes `at` raises UpstreamTimeout from then on."""
        self._due = at
        if self._leave is None or (self._timer is not None and self._rings <= at):
            return  # over, or the timer rings early enough and will see that it was put off
        self._stop_timer()
        self._rings = at
        self._timer = self._loop.call_at(at, self._ring)

    def close(self) -> None:
        """Nothing more is wanted: an unfinished answer's connection is aborted at once."""
        self._forget()
        if not self.complete and self._fault is None:
            self._fault = UpstreamBroken("the answer was closed before its end")
        self._hang_up()

    # What the client and the connection do with it.

    async def head(self) -> None:
        """Return when status and headers are there."""
        while not self.status:
            if self._fault is not None:
                raise self._fault.with_traceback(None)
            await self._news()
        self._decoder = decoder_of(self.headers)

    def attach(self, line: Carrier) -> None:
        """The request is about to go out on `line`."""
        self._line = line

    def reset(self) -> None:
        """What the first line did is forgotten: the request is sent once more."""
        self._fault = None
        self._stop_timer()

    def push(self, data: bytes) -> None:
        """Some bytes of the body came."""
        self._chunks.append(data)
        self.unread += len(data)

    def finish(self) -> None:
        """The whole answer is here."""
        self.complete = True
        self._settle()
        self.wake()

    def fail(self, fault: UpstreamError) -> None:
        """The line is gone: what came before is read first, then `fault` is raised."""
        self._line = None
        self._fault = self._fault or fault
        if self.status:
            self._settle()
        self.wake()

    def hand_over(self) -> bool:
        """Whether somebody took all that is here at once."""
        if self._take_in is None or self._decoder is not None or not self._chunks:
            return False
        chunks = self._chunks
        try:
            if not self._take_in(chunks[0] if len(chunks) == 1 else b"".join(chunks)):
                return False
        except UpstreamError as fault:
            self._break(fault)
            return False
        chunks.clear()
        self.unread = 0
        return True

    def wake(self) -> None:
        """Whoever waits looks again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _news(self) -> "asyncio.Future[None]":
        self._waiter = self._loop.create_future()
        return self._waiter

    def _take(self) -> bytes:
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        if self._decoder is not None:
            data = self._decode(self._decoder, data)
            if self._decoder.more:
                return data
        if self.unread > UNREAD and self._line is not None:
            self._line.resume()
        self.unread = 0
        return data

    def _decode(self, decoder: Decoder, data: bytes) -> bytes:
        try:
            return decoder.feed(data)
        except UpstreamBroken as fault:
            self._break(fault)
            raise

    def _end(self) -> bytes:
        if self._decoder is not None:
            self._decoder.end()
        return b""

    def _ring(self) -> None:
        self._timer = None
        if self._due - self._loop.time() > _TICK:
            self.due(self._due)
            return
        self._break(UpstreamTimeout(self._overdue()))
        self.wake()

    def _overdue(self) -> str:
        missing = "the rest of its answer" if self.status else "any answer"
        return f"{self._peer} did not send {missing} in time; check whether the model is overloaded"

    def _break(self, fault: UpstreamError) -> None:
        self._forget()
        self._fault = fault
        self._hang_up()

    def _forget(self) -> None:
        self._chunks.clear()
        self._decoder = None

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None and not self.complete:
            line.drop()
        self._settle()

    def _settle(self) -> None:
        self._line = self._take_in = None
        self._stop_timer()
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
