"""The proxy as users run it: a real server on loopback, in a thread of its own."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import httpx2
import uvicorn

from proxy.server import process
from proxy.server.app import build_app
from proxy.server.bus import Inbox, WrittenSessions, inboxes
from proxy.settings.load import load

CONFIG = """
upstreams:
  main:
    base_url: "${UPSTREAM_BASE_URL:-practice:}"
    api_key: "${UPSTREAM_API_KEY:-}"
    model: "${UPSTREAM_MODEL:-}"
pipelines:
  default: {upstreams: [main], request: []}
"""


class _PromptServer(uvicorn.Server):
    """Ends as soon as it is told to. uvicorn looks ten times a second, and then waits for another tenth."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told = asyncio.Event()

    def end(self) -> None:
        """On its own loop."""
        self.should_exit = True
        self._told.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):  # and no task of its own, which whoever counts might miss
                    await self._told.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As in uvicorn, if there is any connection to wait for."""
        if await self._is_left():
            for listening in self.servers:
                listening.close()
            await self.lifespan.shutdown()
        else:
            await super().shutdown(sockets)

    async def _is_left(self) -> bool:
        state = self.server_state
        for _ in range(10):
            if not state.connections and not state.tasks:
                return True
            await asyncio.sleep(0.001)
        return False


class ProxyServer:
    """Serves one configuration until it is left; sessions are reported to ``inbox``, if there is one."""

    def __init__(self, config: Path, environ: Mapping[str, str], inbox: Inbox | None = None) -> None:
        notify = WrittenSessions(inbox).session_written if inbox else None
        self.app = build_app(load(config, environ), notify=notify)
        self._server = _PromptServer(process.uvicorn_config(self.app, host="127.0.0.1", port=0))
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        end = time.monotonic() + 10
        while not self._server.started and self._thread.is_alive() and time.monotonic() < end:
            time.sleep(0.005)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]
        self.client = httpx2.Client(base_url=self.root, timeout=10, verify=False)
        return self

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._server.serve()

    def tasks(self) -> int:
        """How many tasks the server has."""
        return len(asyncio.all_tasks(self._loop))

    def run(self, work: Coroutine[Any, Any, Any], *, within: float = 10) -> Any:
        """What comes of some work on the server's own loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(within)

    def end_within(self, seconds: float) -> None:
        """The server ends, and lets calls last for so long."""
        self._server.config.timeout_graceful_shutdown = seconds
        self._end()

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._end()
        self._thread.join(10)

    def _end(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended, and its loop is closed
            self._loop.call_soon_threadsafe(self._server.end)

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The base URL for an OpenAI client."""
        return f"{self.root}/v1"

    def chat(
        self, messages: Any = None, *, path: str = "/v1/chat/completions", **call: Any
    ) -> httpx2.Response:
        """Posts a completion; ``headers``, ``params``, ``content`` are httpx's, the rest is the body."""
        extra = {name: call.pop(name) for name in ("headers", "params", "content") if name in call}
        body = {"model": "fake", "messages": messages or [{"role": "user", "content": "Hi"}], **call}
        return self.client.post(path, **({"json": body} | extra if "content" not in extra else extra))


@contextlib.contextmanager
def unread_inbox() -> Iterator[Inbox]:
    """The inbox of a background process that does not run; the server behaves as beside one."""
    (inbox,) = inboxes(1)
    with inbox[0], inbox[1]:
        yield inbox


Serve = Callable[..., ProxyServer]
"""Starts proxies, as the fixture of that name does."""
