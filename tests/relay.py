"""A way to a server that can be made slow or dead while it is in use."""

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Self

from tests.fake_upstream import closed, some_rounds


class Relay:
    """Passes bytes on to a port or a socket; replies are ``delay`` seconds late, and lost if ``silent``."""

    def __init__(self, target: int | Path) -> None:
        self.delay = 0.0
        self.silent = False
        self._target = target
        self._writers: list[asyncio.StreamWriter] = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(5)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(closed(server))
        self._loop.run_until_complete(self._ended())
        self._loop.close()

    async def _ended(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await some_rounds()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        inner, outer = await self._reached()
        self._writers.append(outer)
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
