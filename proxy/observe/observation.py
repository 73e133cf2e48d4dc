"""What is measured of one request on its way, and the report made of it."""

import json
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from filters.message import Message
from proxy.observe.tracing import TraceContext

# Within a string JSON has a backslash before the second quotation mark: this is a key.
_KEY = b'"usage":'
_TAIL = 4096
_decoder = json.JSONDecoder()
_WHOLE = "request"
Outcome = Literal["done", "hangup", "superseded", "failed"]
"""How a turn ended; ``hangup`` is the client's leaving."""
State = Literal["streaming", "done", "degraded", "interrupted", "cancelled", "failed"]
"""Where a turn stands: ``degraded`` is done with something left out, ``interrupted`` is left or superseded
after its first token, and ``cancelled`` before it."""
OWN_STAGES: Final = frozenset({"recall", "filters"})


class Usage(NamedTuple):
    """Tokens; ``None`` where the upstream does not say."""

    input: int | None = None
    output: int | None = None


def usage_of(chunks: list[bytes]) -> Usage:
    """The last usage in the bytes of an answer, a stream's or a whole one's."""
    tail = b"".join(chunks[-4:])[-_TAIL:]
    place = tail.rfind(_KEY)
    if place < 0:
        return Usage()
    text = tail[place + len(_KEY) :].decode("utf-8", "replace").lstrip()
    try:
        found, _ = _decoder.raw_decode(text)
    except (ValueError, RecursionError):
        return Usage()
    return _counted(found) if isinstance(found, dict) else Usage()


def _counted(usage: dict[str, Any]) -> Usage:
    return Usage(_number(usage.get("prompt_tokens")), _number(usage.get("completion_tokens")))


def _number(given: object) -> int | None:
    return given if type(given) is int and 0 <= given < 2**53 else None


class Attempts(msgspec.Struct, frozen=True, gc=False):
    """A turn's failures before its answer began: upstreams, each with what was wrong, in their order.

    ``again`` names an upstream each time that it was asked once more.
    """

    failures: list[tuple[str, str]] = []
    retries: list[str] = []


class StageTimer:
    """One stage at a time, in seconds; a request that has none is one itself.

    ``began`` is when the request arrived, and ``marks`` when each stage began, by ``time.perf_counter``.
    """

    def __init__(self) -> None:
        self.stages: list[tuple[str, float]] = []
        self.marks: list[tuple[str, float]] = []
        self._stage: str | None = None
        self.start = self._since = time.perf_counter()

    def begin(self, stage: str) -> None:
        """The stage under way ends; this one begins."""
        now = time.perf_counter()
        if self._stage is not None:
            self.stages.append((self._stage, now - self._since))
        self._stage, self._since = stage, now
        self.mark(stage, now)

    def mark(self, stage: str, at: float | None = None) -> None:
        """A stage begins that is reported as a part of the one under way."""
        self.marks.append((stage, at or time.perf_counter()))

    def server_timing(self) -> str:
        """The value of the header, in milliseconds; the stage under way ends here."""
        now = time.perf_counter()
        self.stages.append((self._stage or _WHOLE, now - self._since))
        self._since = now
        return ", ".join([f"{stage};dur={seconds * 1000:.2f}" for stage, seconds in self.stages])

    def elapsed(self) -> float:
        """Seconds since the request arrived."""
        return time.perf_counter() - self.start


class TurnReport(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One turn, with no word of what was said in it.

    ``at`` is when the request arrived, in seconds since 1970; the other times are lengths in seconds, and
    ``lead`` is what went by before the first stage. ``status`` and ``code`` are the client's. ``outcome`` is
    ``None`` while the answer streams. Tokens are the upstream's own count, ``None`` where it gives none.
    ``wanted`` is the model that the pipeline's first upstream would be asked for; ``fell_back`` is whether
    another one answered.
    """

    id: str
    request: str
    at: float
    tenant: str
    pipeline: str
    session: str | None
    user: str | None
    turn: int | None
    upstream: str | None
    model: str | None
    outcome: Outcome | None
    status: int
    code: str | None
    lead: float
    stages: tuple[tuple[str, float], ...]
    filters: tuple[tuple[str, float], ...]
    first_token: float | None
    duration: float
    input_tokens: int | None
    output_tokens: int | None
    degraded: tuple[str, ...]
    ignored: tuple[str, ...]
    attempts: Attempts
    fell_back: bool
    primary_model: str | None = None

    @property
    def state(self) -> State:
        """Where the turn stands, in one word."""
        if self.outcome is None:
            return "streaming"
        if self.outcome == "done":
            return "degraded" if self.degraded else "done"
        if self.outcome == "failed":
            return "failed"
        return "cancelled" if self.first_token is None else "interrupted"

    @property
    def overhead(self) -> float:
        """What the turn took within the proxy before the model was asked."""
        return sum(seconds for stage, seconds in self.stages if stage in OWN_STAGES)


class Observation(msgspec.Struct, eq=False):
    """What is known of a request so far; of a turn from ``turn_of`` on.

    ``tell`` is called with a turn's account when its first token has gone out, and when it has ended.
    ``ignored`` tells of what could not be used of it, once it has ended.
    ``stamps`` are when each part of ``sent`` went out, by ``time.perf_counter``; ``content`` is what was
    said, for whoever knows its form, and ``size`` how many bytes were asked. ``failure`` is what the client
    was told of a failure, and ``reason`` what the log may say of it.
    """

    request: str
    listener: Callable[["Observation"], None] = lambda _: None
    id: str = ""
    at: float = 0.0
    timer: StageTimer = msgspec.field(default_factory=StageTimer)
    status: int = 0
    code: str | None = None
    outcome: Outcome | None = None
    first_token: float | None = None
    pipeline: str | None = None
    tenant: str = "default"
    session: str | None = None
    user: str | None = None
    turn: int | None = None
    model: str | None = None
    primary_model: str | None = None
    upstream: str | None = None
    attempts: Attempts = msgspec.field(default_factory=Attempts)
    fell_back: bool = False
    degraded: list[str] = []
    ignored: Callable[[], Sequence[str]] = tuple
    messages: Sequence[Message] = ()
    filters: list[tuple[str, float]] = []
    chunks: list[bytes] = []
    chunk_times: list[float] = []
    failure: str | None = None
    reason: str | None = None
    content: object = None
    size: int = 0
    trace_context: TraceContext | None = None
    _lasted: float | None = None

    def __post_init__(self) -> None:
        self.id = self.id or f"turn_{secrets.token_hex(8)}"
        self.at = self.at or time.time()

    def begin_turn(self, tenant: str, pipeline: str) -> None:
        """From here on the request is a turn."""
        self.tenant, self.pipeline = tenant, pipeline

    def mark_first_token(self) -> None:
        """The first delta that carries anything is on its way to the client."""
        self.first_token = self.timer.elapsed()
        self.listener(self)

    def end(self, otherwise: Outcome) -> None:
        """The turn has ended; ``otherwise`` is how, where nothing else was noted."""
        if self.pipeline is not None:
            self.outcome = self.outcome or otherwise
            self._lasted = self.timer.elapsed()
            self.listener(self)

    @property
    def duration(self) -> float:
        """How long it took, in seconds; until it has ended, so far."""
        return self.timer.elapsed() if self._lasted is None else self._lasted

    def report(self) -> TurnReport:
        """All that is known now."""
        tokens = usage_of(self.chunks)
        return TurnReport(
            id=self.id,
            request=self.request,
            at=self.at,
            tenant=self.tenant,
            pipeline=self.pipeline or "",
            session=self.session,
            user=self.user,
            turn=self.turn,
            upstream=self.upstream,
            model=self.model,
            outcome=self.outcome,
            status=self.status,
            code=self.code,
            lead=self.timer.marks[0][1] - self.timer.start if self.timer.marks else 0.0,
            stages=tuple(self.timer.stages),
            filters=tuple(self.filters),
            first_token=self.first_token,
            duration=self.duration,
            input_tokens=tokens.input,
            output_tokens=tokens.output,
            degraded=tuple(self.degraded),
            ignored=tuple(self.ignored()) if self.outcome else (),
            attempts=self.attempts,
            fell_back=self.fell_back,
            primary_model=self.primary_model,
        )
