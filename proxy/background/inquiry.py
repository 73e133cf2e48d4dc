"""A question to a model that no caller waits for: one whole answer, not streamed."""

import asyncio
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from filters.message import Message
from proxy import kinds
from proxy.background.verdict import fault, words
from proxy.memory.faults import Unusable
from proxy.target import Target
from proxy.upstream import read_all

_PATH = "/chat/completions"
_LONGEST = 1_000_000
_MISUNDERSTOOD = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)


class _Answer(NamedTuple):
    status: int
    content: bytes
    headers: Mapping[str, str]


class Inquiry:
    """A model that can be asked. ``timeout`` is in seconds."""

    def __init__(self, target: Target, *, timeout: float) -> None:
        self._target = target
        self._timeout = timeout
        self._formless = False

    async def ask(
        self, messages: Sequence[Message], *, model: str, form: Mapping[str, Any] | None = None
    ) -> str:
        """What the model says to the end, less what it thinks before; raises UpstreamError for anything less.

        ``form`` is how the answer is to look, as OpenAI's ``response_format``. An upstream that refuses it is
        asked without it, so the messages have to say it as well.
        """
        formed = None if self._formless else form
        got = await self._answered(self._body(messages, model, formed))
        if formed and got.status in _MISUNDERSTOOD and not isinstance(fault(*got), Unusable):
            got = await self._answered(self._body(messages, model, None))
            self._formless = got.status == HTTPStatus.OK
        if got.status != HTTPStatus.OK:
            raise fault(*got)
        return words(got.content)

    def _body(self, messages: Sequence[Message], model: str, form: Mapping[str, Any] | None) -> bytes:
        fields = {"response_format": msgspec.Raw(msgspec.json.encode(form))} if form else {}
        return kinds.compose(self._target.kind, fields, messages, model=model, allow=self._target.allow)

    async def _answered(self, body: bytes) -> _Answer:
        target, due = self._target, asyncio.get_running_loop().time() + self._timeout
        response = await target.upstream.open("POST", _PATH, target.headers, body, due=due)
        try:
            told = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
            return _Answer(response.status, await read_all(response, _LONGEST), told)
        finally:
            response.close()
