"""The moment at which a stream has begun to answer, and a failure can no longer be a status."""

from typing import Any

import msgspec

from proxy.errors import UpstreamBroken, UpstreamRefused
from proxy.framing import Framing, data_of, events


class Opening:
    """Holds a stream back until its first delta that carries anything.

    A role alone, metadata, usage or comments carry nothing. An error frame, and an end without anything,
    mean that the upstream has not answered, whatever its status said.
    """

    def __init__(self, framing: Framing) -> None:
        self._framing = framing
        self._held: list[bytes] = []

    def feed(self, data: bytes) -> bytes | None:
        """All bytes so far once the answer has begun; ``None`` until then.

        Raises UpstreamRefused for an error frame and UpstreamBroken where the stream ends first.
        """
        whole = self._framing.feed(data)
        self._held.append(whole)
        return b"".join(self._held) if any(_carries(event) for event in events(whole)) else None

    def close(self) -> bytes:
        """The end of a stream that has not begun by then: what it holds, if its last bytes carry anything."""
        rest = self._framing.close()
        if rest and _carries(rest):
            return b"".join([*self._held, rest])
        raise _nothing()


class _Choice(msgspec.Struct):
    delta: dict[str, Any] | None = None
    finish_reason: Any = None
    text: Any = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Chunk)


def _carries(event: bytes) -> bool:
    data = data_of(event)
    if not data:
        return False
    if data == b"[DONE]":
        raise _nothing()
    try:
        chunk = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True  # no chunk of ours to judge: it is the client's
    if chunk.error:
        raise refusal(data, chunk.error)
    return any(_says(choice) for choice in chunk.choices or ())


def _says(choice: _Choice) -> bool:
    if choice.finish_reason or choice.text:
        return True
    return any(value for name, value in (choice.delta or {}).items() if name != "role")


def refusal(body: bytes, error: Any) -> UpstreamRefused:
    """An error that came with status 200, under the status that it names itself, or 502."""
    named = error.get("status", error.get("code")) if isinstance(error, dict) else None
    status = named if isinstance(named, int) and 400 <= named <= 599 else 502  # noqa: PLR2004
    return UpstreamRefused(status, body, {})


def _nothing() -> UpstreamBroken:
    return UpstreamBroken("The upstream's stream ended before it had answered anything.")
