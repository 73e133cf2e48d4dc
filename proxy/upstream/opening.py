"""The moment at which a stream has begun to answer, and a failure can no longer be a status."""

import re
from typing import Any

import msgspec

from proxy.answer.response import Headers
from proxy.answer.sse import Framing, MalformedJson, data_of, decode_json, events
from proxy.errors import UpstreamBroken, UpstreamError, UpstreamRefused

_MOST_HELD = 16_000_000
_ERROR = b'"error"'
# What vendors call it: reasoning_content, reasoning_details, thinking_blocks …
_REASONING = ("reasoning", "thinking")
_OK = 200
_TYPE = re.compile(rb"\s*([a-z0-9][a-z0-9.+-]{0,40}/[a-z0-9][a-z0-9.+-]{0,60})\s*(;|\Z)", re.IGNORECASE)


class HoldBack:
    """Holds a stream back until its first delta that carries anything.

    A role alone, metadata, usage, comments and what cannot be read carry nothing. An error frame, and an end
    without anything, mean that the upstream has not answered, whatever its status said. With ``content``,
    reasoning is no answer either; that it has come is ``thinking``.
    """

    def __init__(self, framing: Framing, *, content: bool = False) -> None:
        self.thinking = False
        self._framing = framing
        self._content = content
        self._held: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> bytes | None:
        """All bytes so far once the answer has begun; ``None`` until then.

        Raises UpstreamRefused for an error frame and UpstreamBroken where the stream ends first, or is longer
        than 16 MB by then.
        """
        whole = self._framing.feed(data)
        self._held.append(whole)
        for event in events(whole) if b"data" in whole else ():
            if self._carries(event):
                return b"".join(self._held)
        self._size += len(whole)
        if self._size > _MOST_HELD:
            raise UpstreamBroken("The upstream sent more than 16 MB before it had answered anything.")
        return None

    def close(self) -> bytes:
        """The end of a stream that has not begun by then: what it holds, if its last bytes carry anything."""
        rest = self._framing.close()
        if rest and self._carries(rest):
            return b"".join([*self._held, rest])
        raise _nothing()

    def _carries(self, event: bytes) -> bool:
        carried = _carried(event)
        if carried is None:
            return False
        self.thinking = True
        return carried or not self._content


def split_at_error(whole: bytes) -> tuple[bytes, UpstreamRefused | None]:
    """The events before the first error frame, and what that says; all of them, where there is none."""
    # Nothing that a model says holds it: within a text, quotes are escaped. Backwards is twice as fast.
    if whole.rfind(_ERROR) < 0:
        return whole, None
    passed: list[bytes] = []
    for event in events(whole):
        if (refused := _error_of(event)) is not None:
            return b"".join(passed), refused
        passed.append(event)
    return whole, None


def _error_of(event: bytes) -> UpstreamRefused | None:
    data = data_of(event)
    try:
        chunk = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return refusal(data, chunk.error) if chunk.error else None


class _Choice(msgspec.Struct):
    delta: dict[str, Any] | None = None
    finish_reason: Any = None
    text: Any = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Chunk)


def _carried(event: bytes) -> bool | None:
    """Whether there is more than reasoning in what an event carries; ``None`` where it carries nothing."""
    data = data_of(event)
    if not data:
        return None
    if data == b"[DONE]":
        raise _nothing()
    carried = None
    for chunk in _chunks_in(data):
        if chunk.error:
            raise refusal(data, chunk.error)
        for choice in chunk.choices or ():
            said = _said(choice)
            carried = said if carried is None else carried or said
    return carried


def _chunks_in(data: bytes) -> list[_Chunk]:
    """The chunk that an event carries; several, where single line breaks part them; none that can be read."""
    try:
        return [_decoder.decode(data)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        patiently = map(_patiently, [data, *data.splitlines()])
        return [chunk for chunk in patiently if chunk is not None]


def _patiently(data: bytes) -> _Chunk | None:
    try:
        return msgspec.convert(decode_json(data), _Chunk)
    except (MalformedJson, msgspec.ValidationError):
        return None


def _said(choice: _Choice) -> bool | None:
    if choice.finish_reason or choice.text:
        return True
    said = None
    for name, value in (choice.delta or {}).items():
        if value and name != "role":
            said = said or not (name.startswith(_REASONING) or _are_thoughts(value))
    return said


def _are_thoughts(value: Any) -> bool:
    """Whether content that comes in parts has nothing but reasoning in them."""
    parts = value if isinstance(value, list) else ()
    kinds = [part.get("type") if isinstance(part, dict) else None for part in parts]
    return bool(kinds) and all(isinstance(kind, str) and kind.startswith(_REASONING) for kind in kinds)


def refusal(body: bytes, error: Any) -> UpstreamRefused:
    """An error that came with status 200, under the status that it names itself, or 502."""
    named = error.get("status", error.get("code")) if isinstance(error, dict) else None
    status = named if isinstance(named, int) and 400 <= named <= 599 else 502  # noqa: PLR2004
    return UpstreamRefused(status, body, {})


def _nothing() -> UpstreamBroken:
    return UpstreamBroken("The upstream's stream ended before it had answered anything.")


def completion_error(status: int, headers: Headers, body: bytes) -> UpstreamError | None:
    """Why a body that came with success is no completion; ``None`` for one that has choices.

    What is said of it quotes nothing but its type: pages to log in at hold more than a caller should know.
    """
    try:
        answer = decode_json(body)
    except MalformedJson:
        return _none(status, _size(body, headers))
    if not isinstance(answer, dict):
        return _none(status, _size(body, headers))
    if _has_choices(answer.get("choices")):
        return None
    error = answer.get("error")
    return refusal(body, error) if error else _none(status, "JSON without choices")


def _has_choices(choices: Any) -> bool:
    return isinstance(choices, list) and any(choice and isinstance(choice, dict) for choice in choices)


def _none(status: int, came: str) -> UpstreamBroken:
    under = "" if status == _OK else f" under the status {status}"
    return UpstreamBroken(f"The upstream sent {came}{under}, which is no completion; check its base_url.")


def _size(body: bytes, headers: Headers) -> str:
    if not body.strip():
        return "an empty body"
    types = (_TYPE.match(value) for name, value in headers if name == b"content-type")
    named = next((found[1].decode().lower() for found in types if found), "no known type")
    return f"{len(body)} bytes of {named}"
