"""A server on loopback, in a thread of its own."""

import asyncio
import ssl
import threading
from typing import Self


class LoopbackServer:
    """Serves each connection until it is left, and leaves none; over TLS where it is given.

    It takes a free port, unless ``port`` is set before it is entered.
    """

    address = "127.0.0.1"
    port = 0

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._writers: set[asyncio.StreamWriter] = set()
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

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection; whoever is among the writers is let go of at the end."""
        raise NotImplementedError

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, self.address, self.port, backlog=2048, ssl=self._tls)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(closed(server))
        self._loop.run_until_complete(self._ended())
        self._loop.close()

    async def _ended(self) -> None:
        """No connection is left: to the collector it would be a fault, in whichever test runs then."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)
        await some_rounds()


async def closed(server: asyncio.Server) -> None:
    """Nobody is let in any more, and whoever was let in a moment ago is served: asyncio would lose him."""
    for listening in server.sockets:
        asyncio.get_running_loop().remove_reader(listening.fileno())
    await some_rounds()
    server.close()


async def some_rounds() -> None:
    """What the loop has before it is done: a connection is let in, or closed, in several rounds."""
    for _ in range(5):
        await asyncio.sleep(0)
