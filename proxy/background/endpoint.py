"""One path of an upstream to which JSON is posted: no conversation, and no stream."""

import asyncio
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec

from proxy.errors import UpstreamBroken, UpstreamRefused
from proxy.target import Target
from proxy.upstream import read_all

T = TypeVar("T")
_LONGEST = 16_000_000


class Endpoint:
    """A path under an upstream's address. ``timeout`` is in seconds."""

    def __init__(self, target: Target, path: str, *, timeout: float) -> None:
        self._target = target
        self._path = path
        self._timeout = timeout

    async def ask(self, body: Any, kind: type[T]) -> T:
        """What is answered, in the shape of ``kind``; raises UpstreamError for anything else."""
        status, content = await self._answered(msgspec.json.encode(body))
        if status != HTTPStatus.OK:
            raise UpstreamRefused(status, content, {})
        try:
            return msgspec.json.decode(content, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise UpstreamBroken("The upstream's answer cannot be read.") from None

    async def _answered(self, body: bytes) -> tuple[int, bytes]:
        target, due = self._target, asyncio.get_running_loop().time() + self._timeout
        response = await target.upstream.open("POST", self._path, target.headers, body, due=due)
        try:
            return response.status, await read_all(response, _LONGEST)
        finally:
            response.close()


def beginning(text: str, most: int) -> str:
    """As many characters as a model takes; half ones, which JSON cannot hold, become question marks."""
    return text[:most].encode("utf-8", "replace").decode()
