"""The client of a reply, without a socket."""

import asyncio

from proxy.http.reply import Client, Reply
from proxy.http.request import Request
from proxy.observe.observation import Observation, Outcome


class ReadingClient(Client):
    """Keeps what it is sent. It may be ``stalled`` for a while, and leave."""

    def __init__(self) -> None:
        super().__init__()
        self.wire = self.transport = Wire()
        self._reads = asyncio.Event()
        self._reply: Reply | None = None

    def reply(self) -> Reply:
        """The answer to its request."""
        self._reply = Reply(self, Observation())
        return self._reply

    def request(self, path: str, body: bytes) -> Request:
        """A request that has come whole."""
        return Request(
            client=self,
            reply=self.reply(),
            method="POST",
            path=path,
            raw_path=path.encode(),
            query_string=b"",
            headers={"host": "localhost"},
            body=body,
            is_whole=True,
        )

    @property
    def sent(self) -> bytes:
        return b"".join(self.wire.written)

    def header(self, name: str) -> str:
        """A header of the answer."""
        lines = self.sent.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
        return dict(line.split(": ", 1) for line in lines)[name]

    def stall(self) -> None:
        self.write_paused = True

    def read(self) -> None:
        self.write_paused = False
        self._reads.set()

    async def drain(self) -> None:
        await self._reads.wait()

    def leave(self) -> None:
        """Leaves, if it is still there, as the server's protocol notes it."""
        assert self._reply
        if not self._reply.disconnected:
            self._reply.disconnected = True
            if self._reply.watcher:
                self._reply.watcher.cancel()

    @property
    def outcome(self) -> Outcome | None:
        """What became of its turn."""
        assert self._reply
        return self._reply.observation.report.outcome


class Wire(asyncio.Transport):
    """A socket that knows whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.read = True
        self.written: list[bytes] = []
        self.closed_after: int | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def pause_reading(self) -> None:
        self.read = False

    def resume_reading(self) -> None:
        self.read = True

    def is_closing(self) -> bool:
        return self.closed_after is not None

    def close(self) -> None:
        self.closed_after = len(self.written)
