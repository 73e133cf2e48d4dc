"""An answer on its way through the answer filters; bytes that they do not change stay as they came."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from filters.base import AnswerFilter, Context, Delta, Stage
from filters.message import is_text
from proxy.answer.sse import MalformedJson, data_of, decode_json, encode_json, events, lines_without_data
from proxy.errors import UpstreamBroken, filter_failed

# Said once for each choice; everything else in a delta adds to what came before it.
_NO_ADDITION = frozenset({"role"})
Chunk = dict[str, Any]
_SPEECHLESS = (b"null", b"true", b"false")
# As many as OpenAI gives; each has stages of its own.
_MOST_CHOICES = 128
_OPENS = (b"{", b"[", b'"')


class Stages:
    """The stages of all filters for one choice, as one: what one lets through, the next is fed with."""

    __slots__ = ("_stages",)

    def __init__(self, filters: Iterable[AnswerFilter], context: Context) -> None:
        opened = (each.open(context) for each in filters)
        self._stages: Sequence[Stage] = [stage for stage in opened if stage is not None]

    def __bool__(self) -> bool:
        """Whether any stage looks at what passes; where none does, deltas need not be read at all."""
        return bool(self._stages)

    def feed(self, delta: Delta) -> Delta:
        """What goes on of a delta; the very same object where nothing changes."""
        for stage in self._stages:
            try:
                delta = stage.feed(delta)
            except Exception as error:  # noqa: BLE001 - a filter of the user's own may raise anything
                raise filter_failed(stage, error) from None
        return delta

    def close(self) -> Delta:
        """All that was held back; empty where nothing was, and when it is called again.

        Every stage is closed exactly once, even where one raises; the error is raised when all are closed.
        """
        stages, self._stages = self._stages, ()
        return _closed(stages, {})


def filter_text(filters: Iterable[AnswerFilter], context: Context, pieces: Iterable[str]) -> str:
    """The words that a client gets of an answer that comes in these pieces."""
    stages = Stages(filters, context)
    deltas = [stages.feed({"content": piece}) for piece in pieces]
    return "".join(delta.get("content") or "" for delta in [*deltas, stages.close()])


def merge_deltas(first: Delta, second: Delta) -> Delta:
    """What two deltas in a row add, as one delta; one of them itself where the other is empty."""
    if not (first and second):
        return first or second
    both = {name: _sum(first[name], second[name]) for name in first.keys() & second.keys() - _NO_ADDITION}
    return {**first, **second, **both}


def _closed(stages: Sequence[Stage], held: Delta) -> Delta:
    """What comes out at the end when ``held`` goes in at the front and every stage is closed."""
    if not stages:
        return held
    try:
        held = _ended(stages[0], held)
    except Exception as error:  # noqa: BLE001 - as in feeding
        _closed(stages[1:], {})
        raise filter_failed(stages[0], error) from None
    return _closed(stages[1:], held)


def _ended(stage: Stage, held: Delta) -> Delta:
    try:
        fed = stage.feed(held) if held else held
    except BaseException:
        stage.close()
        raise
    return merge_deltas(fed, stage.close())


def _sum(first: object, second: object) -> object:
    if isinstance(first, str) and isinstance(second, str):
        return first + second
    if isinstance(first, list) or isinstance(second, list):
        return _parts_of(first, second)
    return first if second is None else second


def _parts_of(first: object, second: object) -> object:
    """Content of which some came in parts; words behind a part that is words belong to it."""
    before, behind = _as_parts(first), _as_parts(second)
    if isinstance(second, str) and before and isinstance(before[-1], dict) and is_text(before[-1]):
        return [*before[:-1], {**before[-1], "text": before[-1]["text"] + second}]
    return [*before, *behind]


def _as_parts(content: object) -> list[Any]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if isinstance(content, str) and content else []


class FilteredAnswer:
    """One answer's filters: stages for each of its choices, opened with its first delta.

    What they cannot read does not pass them: ``unread`` says so, and nothing follows it.
    """

    def __init__(self, filters: Iterable[AnswerFilter], context: Context) -> None:
        self._filters = tuple(filters)
        self._context = context
        self._choices = {0: Stages(self._filters, context)}
        self._filtering = bool(self._choices[0])
        self._name: Mapping[str, Any] = {}
        self._last: Chunk = {}
        self._over = False
        self.started = False
        self.error: UpstreamBroken | None = None

    @property
    def active(self) -> bool:
        """Whether anything looks at what passes."""
        return self._filtering or bool(self._name)

    def adopt_name(self, name: Mapping[str, Any]) -> None:
        """From now on all bear this id and time: something has been said under them, and by whom."""
        self._name = name

    def opening(self) -> bytes:
        """Events to stand before the stream's own; none when it is called again."""
        stated = [] if self.started else [each.first(self._context) for each in self._filters]
        self.started = True
        return b"".join(chunk_event(chunk) for chunk in stated if chunk is not None)

    def feed(self, whole: bytes) -> bytes:
        """Whole events as they go on, up to one that cannot be read."""
        if not self.active:
            return whole
        passed: list[bytes] = []
        try:
            for event in () if self.error else events(whole):
                passed.append(self._event(event))  # noqa: PERF401 - what came before a fault is kept
        except MalformedJson:
            if not self._over:  # what comes behind the end says nothing
                self.error = _unread("an event")
        return b"".join(passed)

    def close(self) -> bytes:
        """Ends every choice that has not ended; what they held back, as events."""
        choices, self._choices = self._choices, {}  # whatever is said behind an end has stages of its own
        held = {index: stages.close() for index, stages in choices.items()}
        return b"".join(chunk_event(self._alone(index, delta)) for index, delta in held.items() if delta)

    def filter_body(self, body: bytes) -> bytes:
        """A whole answer, each message as one large delta; raises UpstreamBroken for what is none."""
        if not self._filtering:
            return body
        try:
            answer = _chunk(body)
            changed = [self._message(choice, self._stages(choice)) for choice in _choices(answer)]
        except MalformedJson:
            raise _unread("an answer") from None
        return encode_json(answer) if any(changed) else body

    def _event(self, event: bytes) -> bytes:
        data = data_of(event)
        if data == b"[DONE]":
            self._over = True
            return self.close() + event
        if not data or data in _SPEECHLESS:
            return event
        if not self._filtering:
            return self._renamed(event, data)
        if data.lstrip()[:1] not in _OPENS:
            return b""  # words that no client of this protocol reads may still be words
        self._last = chunk = _chunk(data)
        # Some say all of it once more in their last chunk, as a message beside the delta.
        again = [self._message(choice, self._anew()) for choice in _choices(chunk) if "message" in choice]
        renamed = self._rename(chunk) or any(again)
        passed = [self._choice(choice) for choice in _choices(chunk)]
        before = b"".join(held for held, _ in passed)
        changed = renamed or any(change for _, change in passed)
        return before + (chunk_event(chunk, lines_without_data(event)) if changed else event)

    def _choice(self, choice: dict[str, Any]) -> tuple[bytes, bool]:
        """Passes a choice's delta on; what must be said before it finishes, and whether it has changed."""
        given = choice.get("delta")
        delta: Delta = given if isinstance(given, dict) else {}
        stages = self._stages(choice)
        fed = stages.feed(delta) if delta else delta
        held = self._ended(choice) if choice.get("finish_reason") else {}
        if held:
            choice["delta"] = {}
            return chunk_event(self._alone(_index(choice), merge_deltas(fed, held))), True
        if fed is not delta:
            choice["delta"] = fed
        return b"", fed is not delta

    def _ended(self, choice: Mapping[str, Any]) -> Delta:
        return self._choices.pop(_index(choice)).close()

    def _renamed(self, event: bytes, data: bytes) -> bytes:
        try:
            chunk = _chunk(data)
        except MalformedJson:
            return event
        return chunk_event(chunk, lines_without_data(event)) if self._rename(chunk) else event

    def _rename(self, chunk: Chunk) -> bool:
        """Puts a chunk under the name that was used already; that the assistant speaks was said with it."""
        if not (self._name and "id" in chunk):
            return False
        chunk.update(self._name)
        for choice in _choices(chunk):
            delta = choice.get("delta")
            if isinstance(delta, dict) and not _index(choice):
                choice["delta"] = {name: value for name, value in delta.items() if name != "role"}
        return True

    def _message(self, choice: dict[str, Any], stages: Stages) -> bool:
        """Passes a whole message on; whether it has changed."""
        message = choice.get("message")
        if not isinstance(message, dict):
            return False
        try:
            choice["message"] = passed = merge_deltas(stages.feed(message), stages.close())
        finally:
            stages.close()
        return passed != message

    def _anew(self) -> Stages:
        return Stages(self._filters, self._context)

    def _stages(self, choice: Mapping[str, Any]) -> Stages:
        index = _index(choice)
        if index not in self._choices:
            if len(self._choices) >= _MOST_CHOICES:
                raise MalformedJson
            self._choices[index] = self._anew()
        return self._choices[index]

    def _alone(self, index: int, delta: Delta) -> Chunk:
        """A chunk like the last one, with nothing in it but one delta."""
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        base = {name: value for name, value in self._last.items() if name not in {"choices", "usage"}}
        return {**base, "choices": [choice]}


def chunk_event(chunk: Mapping[str, Any], beside: bytes = b"") -> bytes:
    """A chunk as an event, with the lines that stood beside its data."""
    return beside + b"data: " + encode_json(chunk) + b"\n\n"


def _chunk(data: bytes) -> Chunk:
    """A JSON object; raises Garbled for all else."""
    chunk = decode_json(data)
    if not isinstance(chunk, dict):
        raise MalformedJson
    return chunk


def _unread(what: str) -> UpstreamBroken:
    return UpstreamBroken(f"The upstream sent {what} that cannot be read; nothing unread passes the filters.")


def _choices(chunk: Chunk) -> list[dict[str, Any]]:
    choices = chunk.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _index(choice: Mapping[str, Any]) -> int:
    index = choice.get("index")
    return index if isinstance(index, int) else 0
