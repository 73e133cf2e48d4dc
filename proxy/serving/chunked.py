"""The shortest way from a turn to its client's socket: for what need not wait."""

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Chunked:
    """One answer's chunks, written without a task and without a message."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @property
    def flows(self) -> bool:
        """Whether the answer goes out in chunks, and the client reads them."""
        cycle = self._cycle
        return bool(cycle.chunked_encoding) and not (cycle.flow.write_paused or cycle.disconnected)

    def push(self, data: bytes) -> None:
        """A chunk, on its way when this returns; only while it ``flows`` (RFC 9112, 7.1)."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
