"""Clients of models for the background: complete answers to prompts, embeddings, and rankings.

Embeddings use OpenAI's API; ``/rerank`` is that of Cohere, Jina and vLLM.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from filters.base import Context
from filters.message import Message
from filters.redact import Redact
from proxy.answer.response import read_all
from proxy.answer.sse import data_of, events
from proxy.answer.transcript import decode_object, first_choice, object_in, transcript
from proxy.errors import UpstreamBroken, UpstreamError, UpstreamRefused
from proxy.memory.archive.records import Vector
from proxy.memory.archive.vectors import normalize
from proxy.memory.errors import UnusableAnswer
from proxy.upstream.body import compose
from proxy.upstream.target import Target

T = TypeVar("T")

_CHAT: Final = "/chat/completions"
_LONGEST_CHAT: Final = 1_000_000
_LONGEST_JSON: Final = 16_000_000
_NO_CONTEXT: Final = Context(now=0.0)
# Finish reasons: OpenAI's names, then those of other servers.
_CUT: Final = frozenset(
    ("length", "max_tokens", "model_length", "abort", "aborted", "error", "insufficient_system_resource")
)
_REFUSED: Final = frozenset(
    ("content_filter", "refusal", "safety", "recitation", "blocklist", "prohibited_content", "sensitive")
)
_THOUGHT: Final = re.compile(
    r"<(?:think|thinking|thought|reasoning)\s*>|\[THINK\]|<\|channel\|>", re.IGNORECASE
)
_THOUGHT_END: Final = re.compile(
    r"</(?:think|thinking|thought|reasoning)>|\[/THINK\]|<\|channel\|>final<\|message\|>", re.IGNORECASE
)
_END_TOKENS: Final = ("<|return|>", "<|end|>", "<|im_end|>", "<|eot_id|>")
_BAD_REQUEST: Final = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
_TOO_LONG: Final = re.compile(
    rb"context[ _](?:length|size|window)|(?:prompt|input|request)s? (?:is|are) too (?:long|large)"
    rb"|reduce the length|maximum (?:number of )?(?:input )?tokens|too many (?:input )?tokens",
    re.IGNORECASE,
)
_CENSORED: Final = re.compile(rb"content_filter|content_policy|ResponsibleAIPolicy|data_inspection_failed")
_ERROR_BYTES: Final = 4_000
# Characters: about 2,000 tokens of English, which most models accept, and about 500 of each document.
_LONGEST_TEXT: Final = 8000
_LONGEST_DOCUMENT: Final = 2000


class EmptyAnswer(UpstreamBroken, UnusableAnswer):
    """A model's answer is complete, but empty."""


class TruncatedAnswer(UpstreamBroken, UnusableAnswer):
    """A model's answer was cut before its end."""


class RefusedAnswer(UpstreamBroken, UnusableAnswer):
    """A model declined to answer, or a content filter stopped it."""


class PromptTooLong(UpstreamBroken, UnusableAnswer):
    """A prompt is longer than the model's context."""


class _Response(NamedTuple):
    status: int
    content: bytes
    headers: Mapping[str, str]


class ModelClient:
    """A client of one upstream's models. ``timeout`` is in seconds, for each request."""

    def __init__(self, target: Target, *, timeout: float) -> None:
        self._target = target
        self._timeout = timeout
        self._takes_form = True

    async def ask(
        self, messages: Sequence[Message], *, model: str, form: Mapping[str, Any] | None = None
    ) -> str:
        """Returns the text of a chat completion without reasoning. Raises UpstreamError if it is incomplete.

        ``form`` is OpenAI's ``response_format``. If an upstream refuses it, the request is repeated without
        it, so the messages must describe the form as well.
        """
        form = form if self._takes_form else None
        response = await self._chat(messages, model, form)
        if form and response.status in _BAD_REQUEST and not isinstance(_error_of(*response), UnusableAnswer):
            response = await self._chat(messages, model, None)
            self._takes_form = response.status != HTTPStatus.OK
        if response.status != HTTPStatus.OK:
            raise _error_of(*response)
        return answer_text(response.content)

    async def post(self, path: str, body: Any, kind: type[T]) -> T:
        """Posts JSON to a path and decodes the answer as ``kind``. Raises UpstreamError."""
        response = await self._post(path, msgspec.json.encode(body), _LONGEST_JSON)
        if response.status != HTTPStatus.OK:
            raise UpstreamRefused(response.status, response.content, {})
        try:
            return msgspec.json.decode(response.content, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise UpstreamBroken("The upstream's answer cannot be read.") from None

    async def _chat(
        self, messages: Sequence[Message], model: str, form: Mapping[str, Any] | None
    ) -> _Response:
        target = self._target
        fields = {"response_format": msgspec.Raw(msgspec.json.encode(form))} if form else {}
        body = compose(target.provider, fields, messages, model=model, allow=target.allow)
        return await self._post(_CHAT, body, _LONGEST_CHAT)

    async def _post(self, path: str, body: bytes, longest: int) -> _Response:
        target, due = self._target, asyncio.get_running_loop().time() + self._timeout
        response = await target.upstream.open("POST", path, target.headers, body, due=due)
        try:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
            return _Response(response.status, await read_all(response, longest), headers)
        finally:
            response.close()


def answer_text(content: bytes) -> str:
    """Returns the text of a complete answer without reasoning. Raises UpstreamBroken for any other."""
    cut, whole = False, content.lstrip()[:1] == b"{"
    chunks = map(decode_object, [content] if whole else map(data_of, events(content)))
    for choice in map(first_choice, filter(None, chunks)):
        reason = str(choice.get("finish_reason") or "").lower()
        message = object_in(choice, "message") or object_in(choice, "delta")
        if reason in _REFUSED or message.get("refusal"):
            raise RefusedAnswer("The model declined to answer.")
        cut = cut or reason in _CUT
    if cut:
        raise TruncatedAnswer("The model's answer was cut short.")
    answer = transcript(content)
    # Not one pattern for reasoning and answer, which would take quadratic time.
    ends = [match.end() for match in _THOUGHT_END.finditer(answer.text)]
    text = answer.text[ends[-1] if ends else 0 :].strip()
    for token in _END_TOKENS:
        text = text.removesuffix(token).rstrip()
    if not text:
        raise (EmptyAnswer if answer.finished else UpstreamBroken)("The model's answer is empty.")
    if not answer.finished or _THOUGHT.match(text):
        raise TruncatedAnswer("The model's answer broke off.")
    return text


def _error_of(status: int, content: bytes, headers: Mapping[str, str]) -> UpstreamError:
    """Returns the error for a status other than 200."""
    too_large = status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    if too_large or status in _BAD_REQUEST:
        if _CENSORED.search(content, 0, _ERROR_BYTES):
            return RefusedAnswer(f"The upstream answered {status}: it declined to answer.")
        if too_large or _TOO_LONG.search(content, 0, _ERROR_BYTES):
            return PromptTooLong(f"The upstream answered {status}: it was asked too much at once.")
    return UpstreamRefused(status, content, headers)


class PromptRedaction:
    """Redacts the prompts of background models, like a pipeline's ``redact`` filters."""

    def __init__(self, steps: Sequence[Redact] = ()) -> None:
        self._steps = steps

    def text(self, text: str, role: str = "user") -> str:
        """Returns the redacted text of a message."""
        return self._redacted(Message(role=role, content=text)).text

    def tool_calls(self, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns redacted tool calls of an assistant."""
        return self._redacted(Message(role="assistant", tool_calls=calls)).tool_calls or []

    def _redacted(self, message: Message) -> Message:
        for step in self._steps:
            (message,) = step.apply([message], _NO_CONTEXT)
        return message


def truncated(text: str, most: int) -> str:
    """Returns the first ``most`` characters; lone surrogates, which are invalid in JSON, become ``?``."""
    return text[:most].encode("utf-8", "replace").decode()


def json_line(data: object) -> str:
    """Encodes data as one line of JSON for a prompt; angle brackets are escaped, so that it closes no tag."""
    return msgspec.json.encode(data).decode().replace("<", "\\u003c").replace(">", "\\u003e")


class _Embedding(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


class _Embeddings(msgspec.Struct):
    data: list[_Embedding]


class _Score(msgspec.Struct):
    index: int
    relevance_score: float


class _Scores(msgspec.Struct):
    results: list[_Score]


class _TextModel:
    """A model that takes texts. ``timeout`` is in seconds, for one request."""

    def __init__(
        self, target: Target, *, model: str, timeout: float, redaction: PromptRedaction | None = None
    ) -> None:
        self.model = model
        self._redaction = redaction or PromptRedaction()
        self._client = ModelClient(target, timeout=timeout)


class HttpEmbedder(_TextModel):
    """An embedding model."""

    async def vectors(self, texts: Sequence[str]) -> list[Vector]:
        """Returns unit vectors for the beginnings of texts, in order. Raises UpstreamError."""
        body = {
            "model": self.model,
            "input": [truncated(self._redaction.text(text), _LONGEST_TEXT) for text in texts],
            "encoding_format": "float",
        }
        lines = (await self._client.post("/embeddings", body, _Embeddings)).data
        places = [place if line.index is None else line.index for place, line in enumerate(lines)]
        if sorted(places) != list(range(len(texts))):
            raise UpstreamBroken("The number of embeddings is not the number of texts.")
        try:
            vectors = {place: normalize(line.embedding) for place, line in zip(places, lines, strict=True)}
        except (ValueError, OverflowError):
            raise UpstreamBroken("An embedding is not a vector.") from None
        return [vectors[place] for place in range(len(texts))]


class HttpReranker(_TextModel):
    """A reranking model."""

    async def relevance(self, question: str, texts: Sequence[str]) -> list[float]:
        """Returns how well the beginning of each text answers a question, in order. Raises UpstreamError."""
        query, *documents = [
            truncated(self._redaction.text(text), _LONGEST_DOCUMENT) for text in (question, *texts)
        ]
        body = {"model": self.model, "query": query, "documents": documents, "top_n": len(texts)}
        lines = (await self._client.post("/rerank", body, _Scores)).results
        if sorted(line.index for line in lines) != list(range(len(texts))):
            raise UpstreamBroken("The ranking does not name each text once.")
        scores = {line.index: line.relevance_score for line in lines}
        return [scores[place] for place in range(len(texts))]
