"""What PgBouncer does with ``pool_mode = transaction``: each transaction may have another connection."""

import asyncio
import itertools
from pathlib import Path
from typing import Self

from tests.peers.loopback_server import LoopbackServer

KEY_DATA, READY, FLUSH = b"K", b"Z", b"H"
DESCRIBED = b"TnE"
"""What a server says last of a statement that was prepared: its rows, that it has none, or an error."""
WAITS = b"SQH"
"""The messages behind which a client waits: Sync, Query and Flush."""
GOODBYE = b"X"
IDLE = READY + (5).to_bytes(4) + b"I"
ROLLBACK = b"Q" + (4 + 9).to_bytes(4) + b"ROLLBACK\0"
CANCEL = (80877102).to_bytes(4)


class Wire:
    """One connection, message by message."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, server: Path) -> Self:
        return cls(*await asyncio.open_unix_connection(server))

    async def greeting(self) -> bytes:
        """What a client begins with; TLS is refused, and nothing is cancelled."""
        while True:
            size = await self.reader.readexactly(4)
            rest = await self.reader.readexactly(int.from_bytes(size) - 4)
            if rest.startswith(CANCEL):
                raise EOFError
            if len(rest) > len(CANCEL):
                return size + rest
            self.writer.write(b"N")

    async def message(self) -> bytes:
        head = await self.reader.readexactly(5)
        if head.startswith(GOODBYE):
            raise EOFError
        return head + await self.reader.readexactly(int.from_bytes(head[1:]) - 4)

    async def until(self, last: bytes) -> list[bytes]:
        """All messages up to one of these kinds."""
        said = [await self.message()]
        while said[-1][:1] not in last:
            said.append(await self.message())
        return said


class TransactionPooler(LoopbackServer):
    """Lends a few connections of a server, in turn, to whoever begins a transaction, as they were left."""

    def __init__(self, server: Path, size: int = 3) -> None:
        super().__init__()
        self._server = server
        self._size = size
        self._lent: list[tuple[Wire, asyncio.Lock]] = []
        self._greeting: list[bytes] = []
        self._opening = asyncio.Lock()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        client = Wire(reader, writer)
        try:
            await self._open(await client.greeting())
            own = [b"K" + (12).to_bytes(4) + bytes(8) if m[:1] == KEY_DATA else m for m in self._greeting]
            writer.write(b"".join(own))
            for number in itertools.count():
                await self._transaction(client, number)
        except (EOFError, OSError):
            writer.close()

    async def _open(self, greeting: bytes) -> None:
        async with self._opening:
            while len(self._lent) < self._size:
                wire = await Wire.to(self._server)
                self._writers.add(wire.writer)
                wire.writer.write(greeting)
                self._greeting = await wire.until(READY)
                self._lent.append((wire, asyncio.Lock()))

    async def _transaction(self, client: Wire, number: int) -> None:
        """Ends where the server says that nothing is open."""
        asked = await client.until(WAITS)
        in_turn = [self._lent[(number + n) % self._size] for n in range(self._size)]
        server, lent = next((one for one in in_turn if not one[1].locked()), in_turn[0])
        async with lent:
            while not await _is_over(client, server, asked):
                try:
                    asked = await client.until(WAITS)
                except (EOFError, OSError):
                    server.writer.write(ROLLBACK)
                    await server.until(READY)
                    raise


async def _is_over(client: Wire, server: Wire, asked: list[bytes]) -> bool:
    server.writer.write(b"".join(asked))
    told = await server.until(DESCRIBED if asked[-1][:1] == FLUSH else READY)
    client.writer.write(b"".join(told))
    return told[-1] == IDLE
