"""What an answer said, read back from the bytes that went to the client."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import msgspec

from filters.tool_groups import tool_call_of
from proxy.answer.sse import DONE, MalformedJson, data_of, decode_json, events

_AT_ONCE: Final = 2_000
_LONG: Final = 250_000
_BEFORE: Final = b"data: "
# What a function and a custom tool are given comes in pieces; all else of a call is said at once.
_PIECEMEAL = frozenset({"arguments", "input"})


_BETWEEN: Final = b"\n\n" + _BEFORE


_END: Final = _BETWEEN + DONE + b"\n\n"


class Transcript(msgspec.Struct, frozen=True, gc=False):
    """The first choice of an answer; ``finished`` is false where it broke off before its end."""

    text: str = ""
    tool_calls: list[dict[str, Any]] | None = None
    reasoning: str | None = None
    finished: bool = False

    @property
    def has_content(self) -> bool:
        """Whether anything that could be heard, or carried out, went to the client."""
        return bool(self.text.strip() or self.tool_calls)

    @property
    def complete_calls(self) -> list[dict[str, Any]] | None:
        """The tool calls less those that broke off with the answer: nobody can carry them out."""
        calls = self.tool_calls or []
        return (calls if self.finished else [call for call in calls if is_complete(call)]) or None


def transcript(sent: bytes) -> Transcript:
    """What was said in the bytes of an answer, a stream's or a whole one's."""
    return _of_whole(sent) if sent.lstrip()[:1] == b"{" else _of_stream(sent)


async def transcript_off_loop(sent: bytes) -> Transcript:
    """The same, off the call: what takes longer than callers may wait for the loop goes to a thread."""
    return transcript(sent) if len(sent) < _LONG else await asyncio.to_thread(transcript, sent)


def _of_stream(sent: bytes) -> Transcript:
    usual = _as_list(sent)
    return (usual and _plain([usual])) or _of_events(sent)


def _as_list(sent: bytes) -> bytes | None:
    """The chunks of a whole stream as one list of JSON, where each event is one line of data and no more."""
    if not (sent.startswith(_BEFORE) and sent.endswith(_END)):
        return None
    chunks = sent[len(_BEFORE) : -len(_END)]
    count = chunks.count(_BETWEEN)
    if count >= _AT_ONCE or chunks.count(b"\n") != 2 * count or b"\r" in chunks:
        return None
    return b"[" + chunks.replace(_BETWEEN, b",") + b"]"


def _of_events(sent: bytes) -> Transcript:
    payloads = [data for data in _payloads(sent) if data]
    if DONE in payloads:  # what comes behind it, clients do not read
        payloads = payloads[: payloads.index(DONE)]
    plain = _plain(_batches(payloads))
    if plain is not None:
        return plain
    deltas, finished = [], False
    for chunk in _chunks(payloads):
        for choice in _first(chunk):
            deltas.append(choice.get("delta"))
            finished = finished or bool(choice.get("finish_reason"))
    said = [delta for delta in deltas if isinstance(delta, dict)]
    return Transcript(_text(said), assemble_calls(said), _reasoning(said), finished)


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    refusal: Any = None
    audio: Any = None
    tool_calls: Any = None
    function_call: Any = None
    reasoning: Any = None
    reasoning_content: Any = None

    @property
    def is_plain(self) -> bool:
        """Whether it carries words and nothing else."""
        called = self.tool_calls or self.function_call
        return not (called or self.refusal or self.audio or self.reasoning or self.reasoning_content)


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    index: int | None = 0
    finish_reason: Any = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] = []


_decoder = msgspec.json.Decoder(list[_Chunk])


def _plain(batches: Iterable[bytes]) -> Transcript | None:
    """The transcript of an answer that is nothing but words, as nearly all are: four times as fast."""
    try:
        chunks = [chunk for batch in batches for chunk in _decoder.decode(batch)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    choices = [choice for chunk in chunks for choice in chunk.choices if not choice.index]
    deltas = [choice.delta for choice in choices if choice.delta is not None]
    if not all(delta.is_plain for delta in deltas):
        return None
    finished = any(choice.finish_reason for choice in choices)
    return Transcript("".join([delta.content for delta in deltas if delta.content]), finished=finished)


def _chunks(payloads: Sequence[bytes]) -> list[dict[str, Any]]:
    try:
        chunks = [chunk for batch in _batches(payloads) for chunk in msgspec.json.decode(batch)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        chunks = [*map(_decoded, payloads)]
    return [chunk for chunk in chunks if isinstance(chunk, dict)]


def _batches(payloads: Sequence[bytes]) -> Iterator[bytes]:
    # One call of the decoder takes a fifth of what one for each event takes, and holds all threads up.
    for start in range(0, len(payloads), _AT_ONCE):
        yield b"[" + b",".join(payloads[start : start + _AT_ONCE]) + b"]"


def _payloads(sent: bytes) -> Iterator[bytes]:
    if b"\r" in sent or b"\n\n\n" in sent:
        yield from map(data_of, events(sent))
        return
    for event in sent.split(b"\n\n"):
        plain = event.startswith(b"data: ") and b"\n" not in event
        yield event[6:] if plain else data_of(event)


def _of_whole(sent: bytes) -> Transcript:
    messages = [choice.get("message") for choice in _first(_decoded(sent) or {})]
    said = [message for message in messages if isinstance(message, dict)]
    return Transcript(_text(said), assemble_calls(said), _reasoning(said), finished=bool(said))


def _decoded(data: bytes) -> dict[str, Any] | None:
    try:
        chunk = decode_json(data)
    except MalformedJson:
        return None
    return chunk if isinstance(chunk, dict) else None


def _first(chunk: dict[str, Any]) -> list[dict[str, Any]]:
    choices = chunk.get("choices")
    if not isinstance(choices, list):
        return []
    return [choice for choice in choices if isinstance(choice, dict) and not choice.get("index")]


def text_of(said: Mapping[str, Any]) -> str:
    """The words of a delta or a message, in one text or in parts; a thought is none."""
    content = said.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    return "".join(_words_in(part) for part in parts if isinstance(part, dict))


def _words_in(part: Mapping[str, Any]) -> str:
    kind = part.get("type")
    words = part.get(kind) if kind in ("text", "refusal") else None
    return words if isinstance(words, str) else ""


def _text(said: Iterable[dict[str, Any]]) -> str:
    spoken = []
    for delta in said:
        audio = delta.get("audio")
        words = text_of(delta) or delta.get("refusal")
        if not words and isinstance(audio, dict):
            words = audio.get("transcript")
        if isinstance(words, str):
            spoken.append(words)
    return "".join(spoken)


def _reasoning(said: Iterable[dict[str, Any]]) -> str | None:
    """What the model thought, under any of the names that servers give it."""
    return "".join(map(_thought, said)) or None


def _thought(delta: Mapping[str, Any]) -> str:
    thought = delta.get("reasoning_content") or delta.get("reasoning")
    if isinstance(thought, str):
        return thought
    content = delta.get("content")
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else ()
    return "".join(text_of({"content": part.get("thinking")}) for part in parts)


def assemble_calls(said: Iterable[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The calls of an answer, from the pieces in its deltas; ``None`` where there are none."""
    said = list(said)
    calls: list[tuple[int, dict[str, Any]]] = []
    newest: dict[int, dict[str, Any]] = {}
    for delta in said:
        pieces = delta.get("tool_calls")
        for place, piece in enumerate(pieces if isinstance(pieces, list) else ()):
            if isinstance(piece, dict):
                index = call_index(piece, place)
                if index not in newest or starts_new_call(newest[index], piece):
                    newest[index] = {}
                    calls.append((index, newest[index]))
                _add(newest[index], piece)
    return [call for _, call in sorted(calls, key=itemgetter(0))] or _function(said)


def _function(said: Iterable[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The one call of the form that came before tools."""
    function: dict[str, Any] = {}
    for delta in said:
        if isinstance(piece := delta.get("function_call"), dict):
            _add(function, piece)
    return [tool_call_of(function)] if function else None


def call_index(piece: Mapping[str, Any], place: int) -> int:
    """Which call of a delta a piece says it is of; its place there, where it says nothing of use."""
    index = piece.get("index")
    return index if isinstance(index, int) else place


def starts_new_call(call: Mapping[str, Any], piece: Mapping[str, Any]) -> bool:
    """Whether a piece begins another call than the one that its index last stood for."""
    # Some servers give all parallel calls one index; others give each piece of one call an id and the name.
    function = piece.get("function") or piece.get("custom")
    named = piece.get("id") and isinstance(function, dict) and function.get("name")
    differs = bool(named and call.get("id") and call["id"] != piece["id"])
    return differs and (bool(call.get("custom")) or _is_whole(call))


def _is_whole(call: Mapping[str, Any]) -> bool:
    """Whether nothing of a call's arguments is to come."""
    try:
        return isinstance(msgspec.json.decode(call["function"]["arguments"]), dict)
    except (KeyError, TypeError, ValueError, RecursionError):
        return False


def is_complete(call: Mapping[str, Any]) -> bool:
    """Whether a call of an answer that broke off is whole; of what a custom tool is given nobody can tell."""
    function = call.get("function")
    if not isinstance(function, dict) or not function.get("name"):
        return False
    return not function.get("arguments") or _is_whole(call)


def _add(call: dict[str, Any], piece: dict[str, Any]) -> None:
    for name, value in piece.items():
        if name == "index":
            continue
        before = call.get(name)
        if isinstance(value, dict):
            call[name] = before if isinstance(before, dict) else {}
            _add(call[name], value)
        elif name in _PIECEMEAL and isinstance(value, str):
            call[name] = (before if isinstance(before, str) else "") + value
        elif value or name not in call:  # some say in every later piece that it has no id and no name
            call[name] = value
