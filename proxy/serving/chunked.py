"""The shortest way from a turn to its client's socket: for what need not wait."""

from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Chunked:
    """One answer's chunks, written without a task and without a message."""

    __slots__ = ("_cycle", "_leave")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._leave: Callable[[], None] | None = None

    @property
    def flows(self) -> bool:
        """Whether the answer goes out in chunks, and the client reads them."""
        cycle = self._cycle
        return bool(cycle.chunked_encoding) and not (cycle.flow.write_paused or cycle.disconnected)

    def push(self, data: bytes) -> None:
        """A chunk, on its way when this returns; only while it ``flows`` (RFC 9112, 7.1)."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def watch(self, leave: Callable[[], None]) -> Callable[[], None]:
        """Calls ``leave`` when the client leaves, once the request is there; what is returned ends that."""
        self._cycle.flow.resume_reading()  # whoever does not listen learns of nobody's leaving
        self._leave = leave
        if self._cycle.disconnected:
            self.left()
        return self._stop

    def left(self) -> None:
        """The client has left."""
        if self._leave is not None:
            self._leave()
            self._leave = None

    def _stop(self) -> None:
        self._leave = None
