"""A way to a server that can be made slow or dead while it is in use."""

import asyncio
import contextlib
from pathlib import Path

from tests.peers.loopback_server import LoopbackServer


class Relay(LoopbackServer):
    """Passes bytes on to a port or a socket; replies are ``delay`` seconds late, and lost if ``silent``.

    While it is ``full``, no other connection is taken.
    """

    def __init__(self, target: int | Path) -> None:
        super().__init__()
        self.delay = 0.0
        self.silent = False
        self.full = False
        self._target = target

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.full:
            writer.close()
            return
        self._writers.add(writer)
        inner, outer = await self._reached()
        self._writers.add(outer)
        try:
            await asyncio.gather(
                self._pass_on(reader, outer, late=False), self._pass_on(inner, writer, late=True)
            )
        finally:
            writer.close()
            outer.close()

    async def _reached(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._target, Path):
            return await asyncio.open_unix_connection(self._target)
        return await asyncio.open_connection("127.0.0.1", self._target)

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, late: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await asyncio.sleep(self.delay if late else 0)
                if not self.silent:
                    writer.write(data)
        writer.close()
