"""What a model may be told that is asked in the background: as calls are told it."""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from filters.base import Context
from filters.message import Message
from filters.redact import Redact
from proxy.answer.response import read_all
from proxy.answer.sse import MalformedJson, data_of, decode_json, events
from proxy.answer.transcript import transcript
from proxy.errors import UpstreamBroken, UpstreamError, UpstreamRefused
from proxy.memory.errors import UnusableAnswer
from proxy.tools.chunk import first_choice, object_in
from proxy.upstream.body import compose
from proxy.upstream.target import Target

_NOWHERE = Context(now=0.0)
T = TypeVar("T")
# OpenAI's names, then those that other servers have for the same.
_CUT: Final = frozenset(
    ("length", "max_tokens", "model_length", "abort", "aborted", "error", "insufficient_system_resource")
)
_BARRED: Final = frozenset(
    ("content_filter", "refusal", "safety", "recitation", "blocklist", "prohibited_content", "sensitive")
)
_OPENED: Final = re.compile(
    r"<(?:think|thinking|thought|reasoning)\s*>|\[THINK\]|<\|channel\|>", re.IGNORECASE
)
_CLOSED: Final = re.compile(
    r"</(?:think|thinking|thought|reasoning)>|\[/THINK\]|<\|channel\|>final<\|message\|>", re.IGNORECASE
)
_MARKS: Final = ("<|return|>", "<|end|>", "<|im_end|>", "<|eot_id|>")
_UNSUITED: Final = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNPROCESSABLE_ENTITY,
)
_TOO_LONG: Final = re.compile(
    rb"context[ _](?:length|size|window)|(?:prompt|input|request)s? (?:is|are) too (?:long|large)"
    rb"|reduce the length|maximum (?:number of )?(?:input )?tokens|too many (?:input )?tokens",
    re.IGNORECASE,
)
_CENSORED: Final = re.compile(rb"content_filter|content_policy|ResponsibleAIPolicy|data_inspection_failed")
_READ: Final = 4_000
_PATH = "/chat/completions"
_LONGEST = 1_000_000
_MISUNDERSTOOD = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)


class PromptRedaction:
    """Redacts what was said as the steps of chains do."""

    def __init__(self, steps: Sequence[Redact] = ()) -> None:
        self._steps = steps

    def text(self, text: str, role: str = "user") -> str:
        """What somebody said, or what tells of it."""
        return self._shown(Message(role=role, content=text)).text if self._steps else text

    def tool_calls(self, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What tools were called with."""
        shown = self._shown(Message(role="assistant", tool_calls=calls)).tool_calls
        return shown or []

    def _shown(self, message: Message) -> Message:
        for step in self._steps:
            (message,) = step.apply([message], _NOWHERE)
        return message


_LONGEST_JSON = 16_000_000


class ModelEndpoint:
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
            return response.status, await read_all(response, _LONGEST_JSON)
        finally:
            response.close()


def truncated(text: str, most: int) -> str:
    """As many characters as a model takes; half ones, which JSON cannot hold, become question marks."""
    return text[:most].encode("utf-8", "replace").decode()


class EmptyAnswer(UpstreamBroken, UnusableAnswer):
    """A model answered to the end, and said nothing."""


class TruncatedAnswer(UpstreamBroken, UnusableAnswer):
    """A model's answer was cut before its end."""


class RefusedAnswer(UpstreamBroken, UnusableAnswer):
    """A model would not answer, or was not let."""


class PromptTooLong(UpstreamBroken, UnusableAnswer):
    """A model was shown more than it takes at once."""


def answer_text(content: bytes) -> str:
    """What a model said to the end, less its thoughts; raises UpstreamBroken for anything less."""
    ends = [*_ends(content)]
    if any(barred for _, barred in ends):
        raise RefusedAnswer("The model declined to answer.")
    if any(cut for cut, _ in ends):
        raise TruncatedAnswer("The model's answer was cut short.")
    told = transcript(content)
    said = _bare(told.text)
    if not said:
        raise (EmptyAnswer if told.finished else UpstreamBroken)("The model said nothing.")
    if not told.finished or _OPENED.match(said):
        raise TruncatedAnswer("The model's answer broke off.")
    return said


def _bare(text: str) -> str:
    """What stands behind the last thought, without the marks that some templates leave at the end."""
    # Found one by one: with what stands before, a long answer would be looked through once for each letter.
    ends = [found.end() for found in _CLOSED.finditer(text)]
    said = text[ends[-1] if ends else 0 :].strip()
    for mark in _MARKS:
        said = said.removesuffix(mark).rstrip()
    return said


def error_of(status: int, content: bytes, headers: Mapping[str, str]) -> UpstreamError:
    """What a status that is no success says of what was asked, or of when to ask again."""
    if status in _UNSUITED and _CENSORED.search(content, 0, _READ):
        return RefusedAnswer(f"The upstream answered {status}: it declined to answer.")
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or (
        status in _UNSUITED and _TOO_LONG.search(content, 0, _READ)
    ):
        return PromptTooLong(f"The upstream answered {status}: it was asked too much at once.")
    return UpstreamRefused(status, content, headers)


def _ends(content: bytes) -> Iterator[tuple[bool, bool]]:
    """Of each piece of an answer whether it says that it was cut, and that it is a refusal."""
    for choice in map(first_choice, _chunks(content)):
        reason = str(choice.get("finish_reason") or "").lower()
        said = object_in(choice, "message") or object_in(choice, "delta")
        yield reason in _CUT, reason in _BARRED or _refuses(said)


def _refuses(said: dict[str, Any]) -> bool:
    content = said.get("content")
    parts = content if isinstance(content, list) else ()
    return bool(said.get("refusal")) or any(
        isinstance(part, dict) and part.get("type") == "refusal" for part in parts
    )


def _chunks(content: bytes) -> Iterator[dict[str, Any]]:
    whole = content.lstrip()[:1] == b"{"
    for data in [content] if whole else map(data_of, events(content)):
        try:
            chunk = decode_json(data)
        except MalformedJson:
            continue
        if isinstance(chunk, dict):
            yield chunk


class _Answer(NamedTuple):
    status: int
    content: bytes
    headers: Mapping[str, str]


class ChatModel:
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
        if formed and got.status in _MISUNDERSTOOD and not isinstance(error_of(*got), UnusableAnswer):
            got = await self._answered(self._body(messages, model, None))
            self._formless = got.status == HTTPStatus.OK
        if got.status != HTTPStatus.OK:
            raise error_of(*got)
        return answer_text(got.content)

    def _body(self, messages: Sequence[Message], model: str, form: Mapping[str, Any] | None) -> bytes:
        fields = {"response_format": msgspec.Raw(msgspec.json.encode(form))} if form else {}
        return compose(self._target.provider, fields, messages, model=model, allow=self._target.allow)

    async def _answered(self, body: bytes) -> _Answer:
        target, due = self._target, asyncio.get_running_loop().time() + self._timeout
        response = await target.upstream.open("POST", _PATH, target.headers, body, due=due)
        try:
            told = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
            return _Answer(response.status, await read_all(response, _LONGEST), told)
        finally:
            response.close()
