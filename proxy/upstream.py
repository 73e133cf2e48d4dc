"""The way to the model and back: what the proxy needs of a client, and the client."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from proxy.errors import UpstreamBroken, UpstreamUnreachable
from proxy.http1.answer import Answer
from proxy.http1.connection import Connection, Stale
from proxy.http1.dialer import Dialer
from proxy.http1.envelope import Headers
from proxy.http1.pool import Pool
from proxy.http1.route import Route, Trust
from proxy.http1.trust import system_trust
from proxy.http1.warmth import Warmth

__all__ = ["Headers", "HttpUpstream", "Response", "Upstream", "is_stream", "read_all"]

_PROXY_REFUSED = 407


class Response(Protocol):
    """An answer whose head is there."""

    status: int
    headers: Headers

    async def read(self) -> bytes:
        """All that has arrived since the last read, decoded, b"" at the end; waits when there is nothing.

        A read that is cancelled loses nothing. Raises UpstreamBroken and UpstreamTimeout.
        """

    def offer(self, take: Callable[[bytes], bool]) -> None:
        """From now on `take` may be asked first whether it takes what arrives; read() has what it does not.

        It may be asked at any time but while its owner runs, and may raise UpstreamBroken.
        """

    def due(self, at: float) -> None:
        """From now on read() raises UpstreamTimeout once loop.time() passes `at`."""

    def close(self) -> None:
        """Nothing more is wanted: an unfinished answer's connection is aborted at once."""


class Upstream(Protocol):
    """Whatever can put a request to a model."""

    async def open(self, method: str, path: str, headers: Headers, body: bytes, *, due: float) -> Response:
        """The answer to this request, its head there by `due`, which holds on until replaced."""

    async def keep_warm(self) -> None:
        """What a request needs stands before it comes, until this is cancelled; the upstream is not asked."""

    async def aclose(self) -> None:
        """Everything is closed, and whoever waits is told."""


async def read_all(response: Response, most: int) -> bytes:
    """A whole body; raises UpstreamBroken where it has more than ``most`` bytes."""
    parts, size = [], 0
    while data := await response.read():
        parts.append(data)
        size += len(data)
        if size > most:
            raise UpstreamBroken(f"The upstream's answer has more than {most} bytes.")
    return b"".join(parts)


def is_stream(headers: Headers) -> bool:
    """Whether an answer is made of server-sent events."""
    return any(name == b"content-type" and b"text/event-stream" in value.lower() for name, value in headers)


class HttpUpstream:
    """A model behind HTTP/1.1, over connections that are kept."""

    def __init__(  # noqa: PLR0913  (each is a setting of its own)
        self,
        base_url: str,
        *,
        connect: float,
        environ: Mapping[str, str],
        max_connections: int = 1000,
        idle: float = 55.0,
        trust: Trust = system_trust,
    ) -> None:
        route = Route.of(base_url, environ, trust)
        self._peer = str(route)
        self._forwarded = route.proxy is not None and not route.tunnelled
        self._envelope = route.envelope
        self._pool = Pool(Dialer(route), self._peer, size=max_connections, connect=connect, idle=idle)
        self._warmth = Warmth(self._pool)

    async def open(self, method: str, path: str, headers: Headers, body: bytes, *, due: float) -> Response:
        """The answer to this request, its head there by `due`."""
        head, body = self._envelope.request(method, path, headers, body)
        self._warmth.wanted = True
        await self._pool.enter(due)
        answer = Answer(asyncio.get_running_loop(), self._pool.leave, self._peer)
        try:
            await self._ask(answer, head, body, due)
            self._admit(answer)
        except BaseException:
            answer.close()
            raise
        return answer

    async def keep_warm(self) -> None:
        """A connection is open early, and stays so while requests come; until cancelled or closed."""
        await self._warmth.keep()

    async def aclose(self) -> None:
        """Everything is closed, and whoever waits is told."""
        await self._pool.aclose()

    async def _ask(self, answer: Answer, head: bytes, body: bytes, due: float) -> None:
        connection = self._pool.idle() or await self._pool.dial(due)
        try:
            await self._put(answer, connection, head, body, due)
        except Stale:
            # The model let an idle connection go while the request was on its way: nothing was answered.
            answer.reset()
            await self._put(answer, await self._pool.dial(due), head, body, due)

    @staticmethod
    async def _put(answer: Answer, connection: Connection, head: bytes, body: bytes, due: float) -> None:
        connection.send(answer, head, body)
        answer.due(due)
        await answer.head()

    def _admit(self, answer: Answer) -> None:
        if self._forwarded and answer.status == _PROXY_REFUSED:
            raise UpstreamUnreachable(
                f"407 on the way to {self._peer}: check the proxy's user name and password"
            )
