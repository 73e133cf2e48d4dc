"""A question to a model that no caller waits for: one whole answer, not streamed."""

import asyncio
from collections.abc import Sequence

from filters.message import Message
from proxy import kinds
from proxy.errors import UpstreamBroken
from proxy.pipeline import Target
from proxy.transcript import transcript
from proxy.upstream import read_all

_PATH = "/chat/completions"
_LONGEST = 1_000_000
_OK = 200


class Inquiry:
    """A model that can be asked. ``timeout`` is in seconds."""

    def __init__(self, target: Target, *, timeout: float) -> None:
        self._target = target
        self._timeout = timeout

    async def ask(self, messages: Sequence[Message], *, model: str) -> str:
        """What the model says; raises UpstreamError where it says nothing, or too late."""
        body = kinds.compose(self._target.kind, {}, messages, model=model, allow=self._target.allow)
        said = transcript(await self._answered(body))
        if not said.text.strip():
            raise UpstreamBroken("The model said nothing.")
        return said.text.strip()

    async def _answered(self, body: bytes) -> bytes:
        target, due = self._target, asyncio.get_running_loop().time() + self._timeout
        response = await target.upstream.open("POST", _PATH, target.headers, body, due=due)
        try:
            content = await read_all(response, _LONGEST)
        finally:
            response.close()
        if response.status != _OK:
            raise UpstreamBroken(f"The upstream answered {response.status}.")
        return content
