"""Holds a stream back until its first delta, so that an early failure can fall back."""

import re
from typing import Any

import msgspec

from proxy.answer.response import Headers
from proxy.answer.sse import DONE, Framing, MalformedJson, data_of, decode_json, events
from proxy.errors import UpstreamBroken, UpstreamError, UpstreamRefused

_LONGEST_OPENING = 16_000_000
ERROR_KEY = b'"error"'
"""The key of an error event. No text of a model holds it: quotes are escaped there."""
# What vendors call it: reasoning_content, reasoning_details, thinking_blocks …
_REASONING = ("reasoning", "thinking")
_OK = 200
_TYPE = re.compile(rb"\s*([a-z0-9][a-z0-9.+-]{0,40}/[a-z0-9][a-z0-9.+-]{0,60})\s*(;|\Z)", re.IGNORECASE)


class _Choice(msgspec.Struct):
    delta: dict[str, Any] | None = None
    finish_reason: Any = None
    text: Any = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class HoldBack(msgspec.Struct, eq=False):
    """Holds a stream back until its first delta that carries anything.

    A role alone, metadata, usage, comments and what cannot be read carry nothing. An error event, or an end
    without anything, means that the upstream has not answered, whatever its status was. With ``content``,
    reasoning does not begin the answer; it sets ``thinking``.
    """

    framing: Framing
    content: bool = False
    thinking: bool = False
    _pieces: list[bytes] = []
    _size: int = 0

    def feed(self, data: bytes) -> bytes | None:
        """Return all bytes so far once the answer has begun, ``None`` until then.

        Raises UpstreamRefused for an error event, and UpstreamBroken where the stream ends first or is longer
        than 16 MB by then.
        """
        whole = data if data.endswith(b"\n\n") and not self.framing.rest else self.framing.feed(data)
        self._pieces.append(whole)
        # Where none of several says that it failed, the newest is read first: a role alone goes before it.
        blank = whole.rfind(b"\n\n", 0, -2)
        several = blank >= 0 and whole.rfind(ERROR_KEY) < 0 and whole.rfind(DONE) < 0
        if several and self._begins(whole[blank + 2 :]):
            return b"".join(self._pieces)
        for event in events(whole) if b"data" in whole else ():
            if self._begins(event):
                return b"".join(self._pieces)
        self._size += len(whole)
        if self._size > _LONGEST_OPENING:
            raise UpstreamBroken("The upstream sent more than 16 MB before it had answered anything.")
        return None

    def close(self) -> bytes:
        """Return all bytes of a stream that has ended, if its last event begins an answer.

        Raises UpstreamBroken where it does not.
        """
        rest = self.framing.close()
        if rest and self._begins(rest):
            return b"".join([*self._pieces, rest])
        raise _no_answer()

    def _begins(self, event: bytes) -> bool:
        data = data_of(event)
        if data == DONE:
            raise _no_answer()
        begins = False
        try:
            chunks = [_decode(data)]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            chunks = _lenient_chunks(data)
        for chunk in chunks:
            if chunk.error:
                raise refusal(data, chunk.error)
            for choice in chunk.choices or ():
                if choice.finish_reason or choice.text:
                    self.thinking = begins = True
                for name, value in (choice.delta or {}).items():
                    if value and name != "role":
                        self.thinking = True
                        if not (self.content and (name.startswith(_REASONING) or _is_reasoning(value))):
                            begins = True
        return begins


def split_at_error(whole: bytes) -> tuple[bytes, UpstreamRefused | None]:
    """Split whole events before the first error event: the events, and the error or ``None``."""
    if whole.rfind(ERROR_KEY) < 0:
        return whole, None
    passed: list[bytes] = []
    for event in events(whole):
        data = data_of(event)
        try:
            error = _decode(data).error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            error = None
        if error:
            return b"".join(passed), refusal(data, error)
        passed.append(event)
    return whole, None


def completion_error(status: int, headers: Headers, body: bytes) -> UpstreamError | None:
    """Why a successful body is no completion; ``None`` for one that has choices.

    The message quotes nothing but the content type: login pages may hold what is not the client's.
    """
    try:
        answer = decode_json(body)
    except MalformedJson:
        answer = None
    if isinstance(answer, dict):
        choices = answer.get("choices")
        if isinstance(choices, list) and any(choice and isinstance(choice, dict) for choice in choices):
            return None
        if error := answer.get("error"):
            return refusal(body, error)
        content = "JSON without choices"
    elif body.strip():
        types = (_TYPE.match(value) for name, value in headers if name == b"content-type")
        name = next((match[1].decode().lower() for match in types if match), "no known type")
        content = f"{len(body)} bytes of {name}"
    else:
        content = "an empty body"
    under = "" if status == _OK else f" under the status {status}"
    return UpstreamBroken(f"The upstream sent {content}{under}, which is no completion; check its base_url.")


def refusal(body: bytes, error: Any) -> UpstreamRefused:
    """An error that came with status 200, under the status that it names itself, or 502."""
    code = error.get("status", error.get("code")) if isinstance(error, dict) else None
    if isinstance(code, int) and 400 <= code <= 599:  # noqa: PLR2004
        return UpstreamRefused(code, body, {})
    refused = UpstreamRefused(502, body, {})
    refused.outcome = "refused"
    return refused


def _lenient_chunks(data: bytes) -> list[_Chunk]:
    """The chunks of an event: several where single line breaks separate them, none that cannot be read."""
    chunks = []
    for part in (data, *data.splitlines()):
        try:
            chunks.append(msgspec.convert(decode_json(part), _Chunk))
        except (MalformedJson, msgspec.ValidationError):
            continue
    return chunks


def _is_reasoning(value: Any) -> bool:
    """Whether content in parts has nothing but reasoning in them."""
    if not isinstance(value, list) or not value:
        return False
    kinds = [part.get("type") if isinstance(part, dict) else None for part in value]
    return all(isinstance(kind, str) and kind.startswith(_REASONING) for kind in kinds)


def _no_answer() -> UpstreamBroken:
    return UpstreamBroken("The upstream's stream ended before it had answered anything.")
