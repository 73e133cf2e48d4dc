"""The observation of one request, and the report that is made of a turn."""

import json
import re
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, Protocol, Self

import msgspec

from filters.message import Message, newest_words
from proxy.answer.transcript import object_in, transcript
from proxy.clock import wall_time

TRACEPARENT: Final = "traceparent"

Outcome = Literal["done", "hangup", "superseded", "failed"]
"""How a turn ended; ``hangup`` means that the client left."""

State = Literal["streaming", "done", "degraded", "interrupted", "cancelled", "failed"]
"""The state of a turn: ``degraded`` is done with something left out; a turn that was left or superseded is
``interrupted`` after its first token and ``cancelled`` before it."""

NO_SESSION: Final = "session"
"""Stands in ``degraded`` where a voice platform names no session, so that nothing can be remembered."""
SESSION_ADVICE: Final = (
    "A voice platform's turns name no session, so nothing of them is remembered: "
    "set 'channel' in Agora's llm.params, or send X-Session-Id"
)
_EXCERPT: Final = 200
# Of an answer that streams, 200 characters take up to a hundred events.
_EXCERPT_BYTES: Final = 16_000
# A quotation mark within a JSON string follows a backslash: this can only be a key.
_USAGE_KEY: Final = b'"usage":'
_USAGE_TAIL: Final = 4096
LARGEST_COPY: Final = 4_000_000
"""How many bytes are kept of what a client gets of one answer."""
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
_decoder = json.JSONDecoder()


class Attempts(msgspec.Struct, frozen=True, gc=False):
    """Failed attempts before an answer began: pairs of upstream and error code, and the upstreams retried."""

    failures: list[tuple[str, str]] = []
    retries: list[str] = []


class Excerpt(msgspec.Struct, frozen=True, gc=False):
    """The beginnings of the user's newest words and of the answer, at most 200 characters of each."""

    words: str
    answer: str


class TurnReport(msgspec.Struct, kw_only=True, gc=False):
    """Ids, times and counts of one turn, with an excerpt of its text if content is kept.

    It is filled as the turn proceeds, and does not change after its end. ``at`` is the time of arrival in
    seconds since 1970; the other times are durations in seconds, and ``lead`` is the time before the first
    stage. ``status`` and ``code`` are those of the client's answer. ``outcome`` is ``None`` until the end.
    ``pipeline`` is empty for a request that is no turn. Tokens are the upstream's own count, or ``None``.
    ``primary_model`` is the model of the pipeline's first upstream, and ``fell_back`` whether another
    upstream answered. ``ignored`` lists the extension fields that could not be used.
    """

    id: str = ""
    request: str = ""
    at: float = msgspec.field(default_factory=wall_time)
    tenant: str = "default"
    pipeline: str = ""
    session: str | None = None
    user: str | None = None
    turn_id: int | None = msgspec.field(default=None, name="turn")
    upstream: str | None = None
    model: str | None = None
    outcome: Outcome | None = None
    status: int = 0
    code: str | None = None
    lead: float = 0.0
    stages: Sequence[tuple[str, float]] = ()
    filters: Sequence[tuple[str, float]] = ()
    first_token: float | None = None
    duration: float = 0.0
    input_tokens: int | None = None
    output_tokens: int | None = None
    degraded: list[str] = []
    ignored: tuple[str, ...] = ()
    attempts: Attempts = msgspec.field(default_factory=Attempts)
    fell_back: bool = False
    primary_model: str | None = None
    excerpt: Excerpt | None = None
    cached_tokens: int | None = None

    @property
    def overhead(self) -> float:
        """The seconds until the upstream was asked."""
        return self.lead + sum([seconds for stage, seconds in self.stages if stage != "upstream"])

    @property
    def state(self) -> State:
        """The state of the turn in one word."""
        if self.outcome is None:
            return "streaming"
        if self.outcome == "done":
            return "degraded" if self.degraded else "done"
        if self.outcome == "failed":
            return "failed"
        return "cancelled" if self.first_token is None else "interrupted"


class StageTimer:
    """Durations of a request's stages, one after another; without stages the request counts as one.

    ``start`` and the times in ``marks``, the beginnings of stages and of parts of them, are by
    ``time.perf_counter``.
    """

    def __init__(self) -> None:
        self.stages: list[tuple[str, float]] = []
        self.marks: list[tuple[str, float]] = []
        self._stage: str | None = None
        self.start = self._since = time.perf_counter()

    def begin(self, stage: str) -> None:
        """Ends the current stage and begins another one."""
        now = time.perf_counter()
        if self._stage is not None:
            self.stages.append((self._stage, now - self._since))
        self._stage, self._since = stage, now
        self.marks.append((stage, now))

    def mark(self, part: str) -> None:
        """Marks the beginning of a part of the current stage."""
        self.marks.append((part, time.perf_counter()))

    def server_timing(self) -> str:
        """Ends the current stage; returns the value of the ``Server-Timing`` header, in milliseconds."""
        now = time.perf_counter()
        self.stages.append((self._stage or "request", now - self._since))
        self._since = now
        return ", ".join([f"{stage};dur={seconds * 1000:.2f}" for stage, seconds in self.stages])


class TraceContext(msgspec.Struct, frozen=True):
    """The ids of one turn (W3C Trace Context): of its trace, its parent span and its upstream request."""

    trace_id: int
    parent_id: int | None
    span_id: int
    sampled: bool = True

    @classmethod
    def of(cls, header: str | None) -> Self:
        """The context that a ``traceparent`` header gives, or a new trace."""
        match = _TRACEPARENT.fullmatch(header or "")
        span_id = secrets.randbits(64) or 1
        if not match:
            return cls(secrets.randbits(128) or 1, None, span_id)
        return cls(int(match[1], 16), int(match[2], 16), span_id, sampled=bool(int(match[3], 16) & 1))

    @property
    def traceparent(self) -> str:
        """The ``traceparent`` header of the upstream request."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.sampled:02x}"


class AnswerCopy(msgspec.Struct, eq=False):
    """The first 4 MB of an answer that were sent to the client, and its end.

    ``size`` is the size of the whole answer in bytes. ``pieces`` are its first 4 MB, and ``times`` the times,
    by ``time.perf_counter``, at which each piece was sent.
    """

    size: int = 0
    pieces: list[bytes] = []
    times: list[float] = []
    _beyond: int = 0
    _end: bytes = b""

    def add(self, data: bytes) -> None:
        """Adds a piece that was sent; pieces beyond 4 MB are not kept."""
        if not data:
            return
        self.size += len(data)
        beyond = self.size - LARGEST_COPY
        if beyond > 0:
            self._end = (self.tail + data[-_USAGE_TAIL:])[-_USAGE_TAIL:]
            data = data[:-beyond]
        if data:
            self.pieces.append(data)
            self.times.append(time.perf_counter())
        else:
            self._beyond += 1

    @property
    def count(self) -> int:
        """The number of pieces of the whole answer."""
        return len(self.times) + self._beyond

    @property
    def is_cut(self) -> bool:
        """Whether the client got more than ``data``."""
        return self.size > LARGEST_COPY

    @property
    def data(self) -> bytes:
        """The first 4 MB of the answer."""
        if len(self.pieces) > 1:
            self.pieces = [b"".join(self.pieces)]
        return self.pieces[0] if self.pieces else b""

    @property
    def tail(self) -> bytes:
        """The last bytes of the answer, in which a model reports its count of tokens."""
        return self._end or self.data[-_USAGE_TAIL:]


class HasMessages(Protocol):
    """The messages of a turn."""

    @property
    def messages(self) -> Sequence[Message]:
        """The client's messages."""
        ...


class Observation(msgspec.Struct, eq=False):
    """The observation of one request; it is a turn once its ``report`` names a pipeline.

    ``on_progress`` is called with the observation when the model is asked, when the first token is sent, and
    when the turn ends. ``content`` are the turn's messages, if they may be kept. ``sent_body`` is the body of
    the last request to an upstream. ``route`` is the pipeline, and ``size`` the size of the client's request
    in bytes. ``answer`` is a copy of a model's answer. ``reason`` is why the turn failed, in words that may
    be logged.
    """

    report: TurnReport = msgspec.field(default_factory=TurnReport)
    on_progress: Callable[["Observation"], None] = lambda _: None
    timer: StageTimer = msgspec.field(default_factory=StageTimer)
    answer: AnswerCopy = msgspec.field(default_factory=AnswerCopy)
    reason: str | None = None
    content: HasMessages | None = None
    sent_body: bytes = b""
    route: object = None
    size: int = 0
    trace_context: TraceContext | None = None

    def mark_first_token(self) -> None:
        """Notes that the beginning of a stream has been written to the client."""
        self.report.first_token = time.perf_counter() - self.timer.start
        self.on_progress(self)

    def end(self, outcome: Outcome) -> None:
        """Ends the turn with ``outcome``, unless another outcome has been set."""
        report = self.report
        if report.pipeline:
            report.outcome = report.outcome or outcome
            report.duration = time.perf_counter() - self.timer.start
            self.on_progress(self)

    def complete(self) -> TurnReport:
        """The report, completed with the values of the timer and the answer."""
        report, timer, usage = self.report, self.timer, usage_of(self.answer.tail)
        report.lead = timer.marks[0][1] - timer.start if timer.marks else 0.0
        report.stages = timer.stages
        report.filters = tuple(report.filters)  # filters in a thread go on when their client has left
        report.input_tokens, report.output_tokens, report.cached_tokens = usage
        return report

    def progress(self, *, with_excerpt: bool) -> TurnReport:
        """Returns a report of a turn that has not ended; it does not change later.

        ``with_excerpt`` adds an excerpt if the turn's content may be kept.
        """
        report = self.complete()
        return msgspec.structs.replace(
            report,
            stages=tuple(report.stages),
            degraded=[*report.degraded],
            duration=time.perf_counter() - self.timer.start,
            excerpt=self.excerpt if with_excerpt else None,
        )

    @property
    def excerpt(self) -> Excerpt | None:
        """An excerpt, if the turn's content may be kept."""
        content = self.content
        return None if content is None else excerpt_of(content.messages, self.report.user, self.answer.data)


def excerpt_of(messages: Sequence[Message], user: str | None, answer: bytes) -> Excerpt | None:
    """Returns the excerpt of a turn of ``user``.

    ``None`` if the newest words are another user's, because forgetting removes turns by their user.
    """
    speaker = next((message.user for message in reversed(messages) if message.role == "user"), None)
    if speaker not in {None, user}:
        return None
    spoken = transcript(answer[:_EXCERPT_BYTES])
    words = spoken.text.strip() or ", ".join(
        f"{call.get('function', {}).get('name', '?')}(…)" for call in spoken.tool_calls or ()
    )
    return Excerpt(newest_words(messages).strip()[:_EXCERPT], words[:_EXCERPT])


class Usage(NamedTuple):
    """The tokens of an answer; ``None`` if the upstream does not report them."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None


def usage_of(answer: bytes) -> Usage:
    """Returns the last usage that an upstream reports at the end of an answer, streamed or whole."""
    tail = answer[-_USAGE_TAIL:]
    key = tail.rfind(_USAGE_KEY)
    if key < 0:
        return Usage()
    try:
        usage, _ = _decoder.raw_decode(tail[key + len(_USAGE_KEY) :].decode("utf-8", "replace").lstrip())
    except (ValueError, RecursionError):
        return Usage()
    if not isinstance(usage, dict):
        return Usage()
    cached = object_in(usage, "prompt_tokens_details").get("cached_tokens")
    return Usage(_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")), _count(cached))


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**53 else None
