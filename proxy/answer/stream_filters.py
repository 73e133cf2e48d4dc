"""An answer on its way through the answer filters; bytes that they do not change stay as they came."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from filters.base import AnswerFilter, Context, Delta, Stage
from filters.message import is_text, parts_of
from proxy.answer.sse import MalformedJson, data_of, decode_json, encode_json, events, lines_without_data
from proxy.errors import FilterFailed, UpstreamBroken, filter_failed

Chunk = dict[str, Any]
_WITHOUT_TEXT = (b"null", b"true", b"false")
_JSON_OPENINGS = (b"{", b"[", b'"')
# As many as OpenAI gives; each has stages of its own.
_MAX_CHOICES = 128
# Sent once for each choice; everything else in a delta adds to what came before it.
_NOT_ADDITIVE = frozenset({"role"})


class FilteredAnswer:
    """One answer's filters: stages for each of its choices, opened with its first delta.

    ``started`` is whether the opening went out, and ``error`` why nothing more does: what cannot be read does
    not pass the filters.
    """

    def __init__(self, filters: Sequence[AnswerFilter], context: Context) -> None:
        self._filters = filters
        self._context = context
        self._choices = {0: Stages(filters, context)} if filters else {}
        self._filtering = bool(filters) and not self._choices[0].is_empty
        self._name: Mapping[str, Any] = {}
        self._last: Chunk = {}
        self._done = False
        self.started = False
        self.error: UpstreamBroken | None = None

    @property
    def active(self) -> bool:
        """Whether anything looks at what passes."""
        return self._filtering or bool(self._name)

    def adopt_name(self, name: Mapping[str, Any]) -> None:
        """Gives all chunks from now on this id and time, under which the client has got words already."""
        self._name = name

    def opening(self) -> bytes:
        """Events to stand before the stream's own; none when it is called again."""
        if self.started:
            return b""
        self.started = True
        opening = b""
        for each in self._filters:
            chunk = each.first(self._context)
            if chunk is not None:
                opening += chunk_event(chunk)
        return opening

    def feed(self, data: bytes) -> bytes:
        """Whole events as they go on, up to one that cannot be read."""
        if not (self._filtering or self._name):
            return data
        passed: list[bytes] = []
        try:
            for event in () if self.error else events(data):
                passed.append(self._event(event))  # noqa: PERF401 - what came before an error is kept
        except MalformedJson:
            if not self._done:  # what comes behind the end says nothing
                self.error = _unreadable("an event")
        return b"".join(passed)

    def close(self) -> bytes:
        """Ends every choice that has not ended; what they held back, as events."""
        choices, self._choices = self._choices, {}  # what comes behind an end has stages of its own
        closing = b""
        for index, stages in choices.items():
            if delta := stages.close():
                closing += chunk_event(self._chunk_of(index, delta))
        return closing

    def filter_body(self, body: bytes) -> bytes:
        """A whole answer, each message as one large delta; raises UpstreamBroken for what is none."""
        if not self._filtering:
            return body
        try:
            answer = _decode_chunk(body)
            changed = [self._filter_message(choice, self._stages(choice)) for choice in _choices(answer)]
        except MalformedJson:
            raise _unreadable("an answer") from None
        return encode_json(answer) if any(changed) else body

    def _event(self, event: bytes) -> bytes:
        data = data_of(event)
        if data == b"[DONE]":
            self._done = True
            return self.close() + event
        if not data or data in _WITHOUT_TEXT:
            return event
        if not self._filtering:
            try:
                chunk = _decode_chunk(data)
            except MalformedJson:
                return event
            return chunk_event(chunk, lines_without_data(event)) if self._rename(chunk) else event
        if data.lstrip()[:1] not in _JSON_OPENINGS:
            return b""  # words that no client of this protocol reads may still be words
        self._last = chunk = _decode_chunk(data)
        changed = False
        for choice in _choices(chunk):
            if "message" in choice:  # some servers repeat the whole answer in the last chunk
                changed = self._filter_message(choice, Stages(self._filters, self._context)) or changed
        changed = self._rename(chunk) or changed
        before = b""
        for choice in _choices(chunk):
            delta = choice.get("delta")
            delta = delta if isinstance(delta, dict) else {}
            stages = self._stages(choice)
            filtered = stages.feed(delta) if delta else delta
            if choice.get("finish_reason") and (rest := self._choices.pop(_index(choice)).close()):
                choice["delta"], changed = {}, True
                # What was held back goes out before the finish.
                before += chunk_event(self._chunk_of(_index(choice), merge_deltas(filtered, rest)))
            elif filtered is not delta:
                choice["delta"], changed = filtered, True
        return before + (chunk_event(chunk, lines_without_data(event)) if changed else event)

    def _rename(self, chunk: Chunk) -> bool:
        """Gives a chunk the adopted name, without the role that went out under it; whether it has changed."""
        if not (self._name and "id" in chunk):
            return False
        chunk.update(self._name)
        for choice in _choices(chunk):
            delta = choice.get("delta")
            if isinstance(delta, dict) and not _index(choice):
                choice["delta"] = {name: value for name, value in delta.items() if name != "role"}
        return True

    def _filter_message(self, choice: dict[str, Any], stages: "Stages") -> bool:
        """Filters a whole message; whether it has changed."""
        message = choice.get("message")
        if not isinstance(message, dict):
            return False
        try:
            choice["message"] = filtered = merge_deltas(stages.feed(message), stages.close())
        finally:
            stages.close()
        return filtered != message

    def _stages(self, choice: Mapping[str, Any]) -> "Stages":
        index = _index(choice)
        if index not in self._choices:
            if len(self._choices) >= _MAX_CHOICES:
                raise MalformedJson
            self._choices[index] = Stages(self._filters, self._context)
        return self._choices[index]

    def _chunk_of(self, index: int, delta: Delta) -> Chunk:
        """A chunk like the last one, with nothing in it but one delta."""
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        base = {name: value for name, value in self._last.items() if name not in {"choices", "usage"}}
        return {**base, "choices": [choice]}


class Stages:
    """The stages of all filters for one choice, as one: what one lets through, the next is fed with.

    Where it ``is_empty``, none looks at what passes, so that deltas need not be decoded.
    """

    __slots__ = ("_stages", "is_empty")

    def __init__(self, filters: Iterable[AnswerFilter], context: Context) -> None:
        self._stages: list[Stage] = []
        for each in filters:
            stage = each.open(context)
            if stage is not None:
                self._stages.append(stage)
        self.is_empty = not self._stages

    def feed(self, delta: Delta) -> Delta:
        """What goes on of a delta; the very same object where nothing changes. Raises FilterFailed."""
        for stage in self._stages:
            try:
                delta = stage.feed(delta)
            except Exception as error:  # noqa: BLE001 - a filter of the user's own may raise anything
                raise filter_failed(stage, error) from None
        return delta

    def close(self) -> Delta:
        """All that was held back; empty where nothing was, and when it is called again.

        Every stage is closed exactly once, even where one raises; FilterFailed is raised when all are closed.
        """
        stages, self._stages = self._stages, []
        held: Delta = {}
        failure: FilterFailed | None = None
        for stage in stages:
            try:
                try:
                    passed = stage.feed(held) if held else held
                except BaseException:
                    stage.close()
                    raise
                held = merge_deltas(passed, stage.close())
            except Exception as error:  # noqa: BLE001 - as in feeding
                failure, held = filter_failed(stage, error), {}
        if failure is not None:
            raise failure
        return held


def filter_text(filters: Iterable[AnswerFilter], context: Context, pieces: Iterable[str]) -> str:
    """The words that a client gets of an answer that comes in these pieces."""
    stages = Stages(filters, context)
    deltas = [stages.feed({"content": piece}) for piece in pieces]
    return "".join(delta.get("content") or "" for delta in [*deltas, stages.close()])


def merge_deltas(first: Delta, second: Delta) -> Delta:
    """What two deltas in a row add, as one delta; one of them itself where the other is empty."""
    if not (first and second):
        return first or second
    both = {name: _sum(first[name], second[name]) for name in first.keys() & second.keys() - _NOT_ADDITIVE}
    return {**first, **second, **both}


def _sum(first: object, second: object) -> object:
    """One value of two; words behind a part that is text belong to that part."""
    if isinstance(first, str) and isinstance(second, str):
        return first + second
    if not isinstance(first, list) and not isinstance(second, list):
        return first if second is None else second
    before, behind = parts_of(first), parts_of(second)
    if isinstance(second, str) and before and isinstance(before[-1], dict) and is_text(before[-1]):
        return [*before[:-1], {**before[-1], "text": before[-1]["text"] + second}]
    return [*before, *behind]


def chunk_event(chunk: Mapping[str, Any], other_lines: bytes = b"") -> bytes:
    """A chunk as an event, with the lines that stood beside its data."""
    return other_lines + b"data: " + encode_json(chunk) + b"\n\n"


def _decode_chunk(data: bytes) -> Chunk:
    """A JSON object; raises MalformedJson for all else."""
    chunk = decode_json(data)
    if not isinstance(chunk, dict):
        raise MalformedJson
    return chunk


def _unreadable(what: str) -> UpstreamBroken:
    return UpstreamBroken(f"The upstream sent {what} that cannot be read; nothing unread passes the filters.")


def _choices(chunk: Chunk) -> list[dict[str, Any]]:
    choices = chunk.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _index(choice: Mapping[str, Any]) -> int:
    index = choice.get("index")
    return index if isinstance(index, int) else 0
