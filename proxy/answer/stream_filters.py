"""The answer filters applied to an answer; events that they do not change keep their bytes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from filters.base import AnswerFilter, Context, Delta, Stage
from filters.message import is_text, parts_of
from proxy.answer.sse import MalformedJson, data_of, decode_json, encode_json, events, lines_without_data
from proxy.answer.transcript import choices_in, object_in
from proxy.errors import FilterFailed, UpstreamBroken, filter_failed

Chunk = dict[str, Any]
_WITHOUT_TEXT = (b"null", b"true", b"false")
_JSON_OPENINGS = (b"{", b"[", b'"')
# OpenAI's limit; each choice has stages of its own.
_MAX_CHOICES = 128
# Sent once for each choice; all other values in a delta are added to earlier ones.
_NOT_ADDITIVE = frozenset({"role"})


class FilteredAnswer:
    """The filters of one answer, with stages for each of its choices, opened with the first delta.

    ``started`` is whether ``opening`` was called. ``error`` is set once an event cannot be read: unread bytes
    do not pass the filters, so that no later event passes.
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
        """Whether events are decoded at all."""
        return self._filtering or bool(self._name)

    def adopt_name(self, name: Mapping[str, Any]) -> None:
        """Sets id and time of all later chunks to those under which the client has got words already."""
        self._name = name

    def opening(self) -> bytes:
        """Returns the filters' events for the beginning of the stream; b"" at a second call."""
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
        """Returns whole events, filtered, up to the first one that cannot be read, which sets ``error``."""
        if not (self._filtering or self._name):
            return data
        passed: list[bytes] = []
        try:
            for event in () if self.error else events(data):
                passed.append(self._event(event))  # noqa: PERF401 - the events before an error are kept
        except MalformedJson:
            if not self._done:  # events after the end do not matter
                self.error = _unreadable("an event")
        return b"".join(passed)

    def close(self) -> bytes:
        """Ends all choices that have not ended; returns what their filters held back, as events."""
        choices, self._choices = self._choices, {}  # later deltas get new stages
        closing = b""
        for index, stages in choices.items():
            if delta := stages.close():
                closing += chunk_event(self._chunk_of(index, delta))
        return closing

    def filter_body(self, body: bytes) -> bytes:
        """Filters a whole answer, each message as one large delta; returns the body.

        Raises UpstreamBroken for a body that is no answer.
        """
        if not self._filtering:
            return body
        try:
            answer = _decode_chunk(body)
            changed = [self._filter_message(choice, self._stages(choice)) for choice in choices_in(answer)]
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
            return b""  # clients do not read it, but it may hold words that are unfiltered
        self._last = chunk = _decode_chunk(data)
        changed = False
        for choice in choices_in(chunk):
            if "message" in choice:  # some servers repeat the whole answer in the last chunk
                changed = self._filter_message(choice, Stages(self._filters, self._context)) or changed
        changed = self._rename(chunk) or changed
        before = b""
        for choice in choices_in(chunk):
            delta = object_in(choice, "delta")
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
        """Sets the adopted name in a chunk, and removes the role; returns whether the chunk has changed."""
        if not (self._name and "id" in chunk):
            return False
        chunk.update(self._name)
        for choice in choices_in(chunk):
            delta = choice.get("delta")
            if isinstance(delta, dict) and not _index(choice):
                choice["delta"] = {name: value for name, value in delta.items() if name != "role"}
        return True

    def _filter_message(self, choice: dict[str, Any], stages: "Stages") -> bool:
        """Filters the whole message of a choice; returns whether it has changed."""
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
        """A chunk with the fields of the last one, and this delta as its only choice."""
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        base = {name: value for name, value in self._last.items() if name not in {"choices", "usage"}}
        return {**base, "choices": [choice]}


class Stages:
    """The stages of all filters for one choice: each is fed with the output of the one before.

    ``is_empty`` is whether there are no stages, so that deltas need not be decoded.
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
        """Filters a delta; returns the very same object where nothing changes. Raises FilterFailed."""
        for stage in self._stages:
            try:
                delta = stage.feed(delta)
            except Exception as error:  # noqa: BLE001 - a filter of the user's own may raise anything
                raise filter_failed(stage, error) from None
        return delta

    def close(self) -> Delta:
        """Closes all stages; returns what they held back, empty at a second call.

        Every stage is closed exactly once, even where one raises; FilterFailed is raised when all are closed.
        """
        stages, self._stages = self._stages, []
        rest: Delta = {}
        failure: FilterFailed | None = None
        for stage in stages:
            try:
                try:
                    passed = stage.feed(rest) if rest else rest
                except BaseException:
                    stage.close()
                    raise
                rest = merge_deltas(passed, stage.close())
            except Exception as error:  # noqa: BLE001 - as in ``feed``
                failure, rest = filter_failed(stage, error), {}
        if failure is not None:
            raise failure
        return rest


def filter_text(filters: Iterable[AnswerFilter], context: Context, pieces: Iterable[str]) -> str:
    """Filters an answer that arrives in these pieces; returns the text for the client."""
    stages = Stages(filters, context)
    deltas = [stages.feed({"content": piece}) for piece in pieces]
    return "".join(delta.get("content") or "" for delta in [*deltas, stages.close()])


def merge_deltas(first: Delta, second: Delta) -> Delta:
    """Merges two consecutive deltas into one; returns one of them itself where the other is empty."""
    if not (first and second):
        return first or second
    both = {name: _sum(first[name], second[name]) for name in first.keys() & second.keys() - _NOT_ADDITIVE}
    return {**first, **second, **both}


def _sum(first: object, second: object) -> object:
    """Merges two values of a delta; text after a text part is added to that part."""
    if isinstance(first, str) and isinstance(second, str):
        return first + second
    if not isinstance(first, list) and not isinstance(second, list):
        return first if second is None else second
    before, behind = parts_of(first), parts_of(second)
    if isinstance(second, str) and before and isinstance(before[-1], dict) and is_text(before[-1]):
        return [*before[:-1], {**before[-1], "text": before[-1]["text"] + second}]
    return [*before, *behind]


def chunk_event(chunk: Mapping[str, Any], other_lines: bytes = b"") -> bytes:
    """A chunk as an event, after the event's lines that are not data."""
    return other_lines + b"data: " + encode_json(chunk) + b"\n\n"


def _decode_chunk(data: bytes) -> Chunk:
    """Decodes a JSON object; raises MalformedJson for anything else."""
    chunk = decode_json(data)
    if not isinstance(chunk, dict):
        raise MalformedJson
    return chunk


def _unreadable(what: str) -> UpstreamBroken:
    return UpstreamBroken(f"The upstream sent {what} that cannot be read; nothing unread passes the filters.")


def _index(choice: Mapping[str, Any]) -> int:
    index = choice.get("index")
    return index if isinstance(index, int) else 0
