"""The transcript of an answer, read from the bytes that went to the client, and the tool calls in chunks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, Literal

import msgspec

from filters.tool_groups import tool_call_of
from proxy.answer.sse import (
    DONE,
    MalformedJson,
    data_of,
    decode_cut_json,
    decode_json,
    encode_json,
    events,
    whole_characters,
)

Chunk = dict[str, Any]

_BATCH: Final = 2_000
_DATA: Final = b"data: "
_BETWEEN: Final = b"\n\n" + _DATA
_END: Final = _BETWEEN + DONE + b"\n\n"
_NoText = Literal[""] | None
# The arguments of a function and the input of a custom tool come in pieces; other values of a call are whole.
_ADDITIVE: Final = frozenset({"arguments", "input"})
_CUT_SHORT = ("length", "content_filter")
_ARGUMENTS = {"function": "arguments", "custom": "input"}
_CALLED = frozenset({"index", "type", *_ARGUMENTS})


class Transcript(msgspec.Struct, frozen=True, gc=False):
    """The first choice of an answer; ``finished`` is false where it broke off before its end.

    ``cut`` is whether the client got more of the answer than stands here.
    """

    text: str = ""
    tool_calls: list[dict[str, Any]] | None = None
    reasoning: str | None = None
    finished: bool = False
    cut: bool = False

    @property
    def has_content(self) -> bool:
        """Whether text that can be heard, or a tool call, went to the client."""
        return bool(self.text.strip() or self.tool_calls or self.cut)

    @property
    def complete_calls(self) -> list[dict[str, Any]] | None:
        """The tool calls without those that are cut off with the answer; ``None`` if there are none."""
        calls = self.tool_calls or []
        return (calls if self.finished else list(filter(is_complete, calls))) or None


def transcript(answer: bytes) -> Transcript:
    """Reads the transcript from the bytes of an answer, streamed or not, which may be cut off anywhere."""
    # The usual form: each event is one line of data.
    if answer.startswith(_DATA) and answer.endswith(_END):
        payloads = answer[len(_DATA) : -len(_END)].split(_BETWEEN)
        batch = b"[" + b",".join(payloads) + b"]"
        if len(payloads) <= _BATCH and b"\n" not in batch and b"\r" not in batch:
            plain = _plain_transcript([batch])
            if plain is not None:
                return plain
    elif answer.lstrip()[:1] == b"{":
        body = decode_object(answer)
        choices = _first_choices(body or decode_object(answer, decode_cut_json) or {})
        messages = [message for choice in choices if isinstance(message := choice.get("message"), dict)]
        finished = body is not None and bool(messages)
        return _transcript_of(messages, finished=finished)
    if b"\r" in answer or b"\n\n\n" in answer:
        payloads = [data for event in events(answer) if (data := data_of(event))]
    else:
        payloads = [data for event in answer.split(b"\n\n") if (data := data_of(event))]
    if DONE in payloads:  # clients do not read beyond it
        payloads = payloads[: payloads.index(DONE)]
    elif payloads and not answer.endswith((b"\n", b"\r")) and decode_object(payloads[-1]) is None:
        payloads[-1] = encode_json(decode_object(payloads[-1], decode_cut_json))
    # One call of the decoder for many events takes a fifth of the time, but blocks all threads meanwhile.
    starts = range(0, len(payloads), _BATCH)
    batches = [b"[" + b",".join(payloads[start : start + _BATCH]) + b"]" for start in starts]
    plain = _plain_transcript(batches)
    if plain is not None:
        return plain
    try:
        chunks = [chunk for batch in batches for chunk in msgspec.json.decode(batch)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        chunks = [*map(decode_object, payloads)]
    choices = [choice for chunk in chunks if isinstance(chunk, dict) for choice in _first_choices(chunk)]
    deltas = [delta for choice in choices if isinstance(delta := choice.get("delta"), dict)]
    finished = any(choice.get("finish_reason") for choice in choices)
    return _transcript_of(deltas, finished=finished)


def _transcript_of(deltas: Sequence[Mapping[str, Any]], *, finished: bool) -> Transcript:
    """The transcript of deltas, or of messages."""
    text, calls, thoughts = whole_characters((_text(deltas), assemble_calls(deltas), _reasoning(deltas)))
    return Transcript(text, calls, thoughts, finished)


class _Delta(msgspec.Struct, gc=False):
    """A delta with text alone; one with reasoning, audio, a refusal or tool calls fails validation."""

    content: str | None = None
    refusal: _NoText = None
    audio: None = None
    tool_calls: tuple[()] | None = None
    function_call: None = None
    reasoning: _NoText = None
    reasoning_content: _NoText = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    index: int | None = 0
    finish_reason: Any = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] = []


_decode_chunks = msgspec.json.Decoder(list[_Chunk]).decode


def _plain_transcript(batches: Iterable[bytes]) -> Transcript | None:
    """The transcript of an answer with text alone, as most are; ``None`` for others. Four times as fast."""
    words, finished = [], False
    try:
        for batch in batches:
            for chunk in _decode_chunks(batch):
                for choice in chunk.choices:
                    if choice.index:
                        continue
                    delta = choice.delta
                    if delta and delta.content:
                        words.append(delta.content)
                    if choice.finish_reason:
                        finished = True
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return Transcript("".join(words), finished=finished)


def choices_in(chunk: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The choices of a chunk or an answer."""
    choices = chunk.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _first_choices(chunk: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [choice for choice in choices_in(chunk) if not choice.get("index")]


def text_of(delta: Mapping[str, Any]) -> str:
    """The text of a delta's or a message's content, as a string or in parts, without reasoning."""
    content = delta.get("content")
    if isinstance(content, str):
        return content
    text = ""
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        words = part.get(kind) if kind in ("text", "refusal") else None
        text += words if isinstance(words, str) else ""
    return text


def _text(deltas: Iterable[Mapping[str, Any]]) -> str:
    texts = []
    for delta in deltas:
        audio = delta.get("audio")
        words = text_of(delta) or delta.get("refusal")
        if not words and isinstance(audio, dict):
            words = audio.get("transcript")
        if isinstance(words, str):
            texts.append(words)
    return "".join(texts)


def _reasoning(deltas: Iterable[Mapping[str, Any]]) -> str | None:
    """The model's reasoning, under any of the names that servers use; ``None`` where there is none."""
    thoughts = []
    for delta in deltas:
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(thought, str):
            thoughts.append(thought)
            continue
        content = delta.get("content")
        parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
        thoughts += [text_of({"content": part.get("thinking")}) for part in parts]
    return "".join(thoughts) or None


def assemble_calls(deltas: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """Assembles the tool calls of an answer from the pieces in its deltas; ``None`` where there are none."""
    calls: list[tuple[int, dict[str, Any]]] = []
    newest: dict[int, dict[str, Any]] = {}
    function: dict[str, Any] = {}  # the single call in the old form, ``function_call``
    for delta in deltas:
        pieces = delta.get("tool_calls")
        for position, piece in enumerate(pieces if isinstance(pieces, list) else ()):
            if isinstance(piece, dict):
                index = piece.get("index")
                index = index if isinstance(index, int) else position
                if index not in newest or _starts_new_call(newest[index], piece):
                    newest[index] = {}
                    calls.append((index, newest[index]))
                _add_piece(newest[index], {name: value for name, value in piece.items() if name != "index"})
        if isinstance(piece := delta.get("function_call"), dict):
            _add_piece(function, piece)
    if calls:
        return [call for _, call in sorted(calls, key=itemgetter(0))]
    return [tool_call_of(function)] if function else None


def _starts_new_call(call: Mapping[str, Any], piece: Mapping[str, Any]) -> bool:
    """Whether a piece begins a new call under the index of an earlier one."""
    # Some servers give all parallel calls one index; others repeat id and name in each piece of a call.
    function = piece.get("function") or piece.get("custom")
    named = piece.get("id") and isinstance(function, dict) and function.get("name")
    differs = bool(named and call.get("id") and call["id"] != piece["id"])
    is_object = isinstance(object_in(call, "function").get("arguments"), dict)
    return differs and (is_object or bool(call.get("custom")) or has_whole_arguments(call))


def has_whole_arguments(call: Mapping[str, Any]) -> bool:
    """Whether a call's arguments are a complete JSON object."""
    try:
        return isinstance(msgspec.json.decode(call["function"]["arguments"]), dict)
    except (KeyError, TypeError, ValueError, RecursionError):
        return False


def is_complete(call: Mapping[str, Any]) -> bool:
    """Whether a call of an answer that was cut off is complete; for a custom tool's it cannot be known."""
    function = call.get("function")
    if not isinstance(function, dict) or not function.get("name"):
        return False
    return not function.get("arguments") or has_whole_arguments(call)


def _add_piece(call: dict[str, Any], piece: dict[str, Any]) -> None:
    for name, value in piece.items():
        before = call.get(name)
        if isinstance(value, dict) and name in _ADDITIVE:  # arguments as an object are complete
            call[name] = value
        elif isinstance(value, dict):
            call[name] = before if isinstance(before, dict) else {}
            _add_piece(call[name], value)
        elif name in _ADDITIVE and isinstance(value, str):
            call[name] = (before if isinstance(before, str) else "") + value
        elif value or name not in call:  # some servers repeat an empty id and name in every later piece
            call[name] = value


def decode_object(data: bytes, decode: Callable[[bytes], Any] = decode_json) -> Chunk | None:
    """Decodes a JSON object; ``None`` for anything else."""
    try:
        chunk = decode(data)
    except MalformedJson:
        return None
    return chunk if isinstance(chunk, dict) else None


def first_choice(chunk: Mapping[str, Any]) -> dict[str, Any]:
    """The first choice, empty where there is none."""
    return next(iter(choices_in(chunk)), {})


def object_in(parent: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The object under this name; empty where there is none."""
    value = parent.get(name)
    return value if isinstance(value, dict) else {}


def function_name(call: Mapping[str, Any]) -> str:
    """The name of a call's function; empty where there is none."""
    name = object_in(call, "function").get("name")
    return name if isinstance(name, str) else ""


def normalize_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call in the form that can be run and sent back: with id, name, and arguments as a string."""
    kind = "custom" if object_in(call, "custom") else "function"
    called, key = object_in(call, kind), _ARGUMENTS[kind]
    name, arguments = called.get("name"), called.get(key) or ""
    if not isinstance(arguments, str):  # some servers send the decoded JSON
        arguments = msgspec.json.encode(arguments).decode()
    # Other values may have to be sent back with the call, such as Gemini's signatures.
    others = {other: value for other, value in call.items() if value and other not in _CALLED}
    function = {"name": name if isinstance(name, str) else "", key: arguments}
    return {"id": "", "type": kind, kind: function, **others}


def finish_reason(reason: Any, theirs: Sequence[Mapping[str, Any]]) -> Any:
    """The finish reason for the client; ``theirs`` are the calls of the client's tools.

    The reason of an answer that was cut short stays.
    """
    if reason in _CUT_SHORT:
        return reason
    return "tool_calls" if theirs else "stop" if reason == "tool_calls" else reason


def sum_usage(usages: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of token counts, at every level; of other values the first one."""
    total: dict[str, Any] = {}
    for usage in usages:
        for name, value in usage.items():
            if isinstance(value, dict):
                total[name] = sum_usage([object_in(total, name), value])
            elif isinstance(value, int | float) and isinstance(total.get(name, 0), int | float):
                total[name] = total.get(name, 0) + value
            else:
                total.setdefault(name, value)
    return total
