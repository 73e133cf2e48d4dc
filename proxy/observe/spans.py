"""Turns as OpenTelemetry's spans. This module needs the extra ``traces``, and is loaded where that is set."""

from collections import deque

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from proxy.observe.observation import TurnReport
from proxy.observe.tracing import TraceContext
from proxy.version import VERSION

_PATIENCE = 2.0
_NANOSECONDS = 1_000_000_000
_QUESTION = "upstream"


class Spans:
    """Makes a span for each turn that has ended and for each of its stages; a thread sends them."""

    def __init__(self, endpoint: str) -> None:
        self._ids = _Planned()
        resource = Resource.create({"service.name": "turnkeeper", "service.version": VERSION})
        self._provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_PATIENCE)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("turnkeeper", VERSION)

    def add(self, account: TurnReport, lineage: TraceContext) -> None:
        """Makes the spans of a turn."""
        self._ids.trace = lineage.trace_id
        parent = set_span_in_context(_remote(lineage)) if lineage.parent_id else None
        began = int(account.at * _NANOSECONDS)
        ended = began + int(account.duration * _NANOSECONDS)
        turn = self._tracer.start_span(
            "turn", parent, SpanKind.SERVER, attributes=_attributes(account), start_time=began
        )
        if account.outcome == "failed":
            turn.set_status(Status(StatusCode.ERROR, account.code))
        self._stages(account, lineage, turn, began)
        turn.end(ended)

    def close(self) -> None:
        """Sends what is left; it may take seconds."""
        self._provider.shutdown()

    def _stages(self, account: TurnReport, lineage: TraceContext, turn: Span, began: int) -> None:
        inside = set_span_in_context(turn)
        start = began + int(account.lead * _NANOSECONDS)
        for name, seconds in account.stages:
            question = name == _QUESTION
            end = start + int(seconds * _NANOSECONDS)
            if question:
                self._ids.spans.append(lineage.span_id)
                end = began + int(account.duration * _NANOSECONDS)
            kind = SpanKind.CLIENT if question else SpanKind.INTERNAL
            known = _asked(account) if question else None
            self._tracer.start_span(name, inside, kind, attributes=known, start_time=start).end(end)
            start = end


class _Planned(IdGenerator):
    """Ids that are known before their spans are made; others at random."""

    def __init__(self) -> None:
        self.trace = 0
        self.spans: deque[int] = deque()
        self._random = RandomIdGenerator()

    def generate_span_id(self) -> int:
        return self.spans.popleft() if self.spans else self._random.generate_span_id()

    def generate_trace_id(self) -> int:
        return self.trace


def _remote(lineage: TraceContext) -> NonRecordingSpan:
    flags = TraceFlags(TraceFlags.SAMPLED if lineage.sampled else TraceFlags.DEFAULT)
    return NonRecordingSpan(
        SpanContext(lineage.trace_id, lineage.parent_id or 0, is_remote=True, trace_flags=flags)
    )


def _attributes(account: TurnReport) -> dict[str, AttributeValue]:
    known = {
        "http.response.status_code": account.status,
        "error.type": account.code if account.outcome == "failed" else None,
        "gen_ai.conversation.id": account.session,
        "turnkeeper.turn": account.id,
        "turnkeeper.request": account.request,
        "turnkeeper.pipeline": account.pipeline,
        "turnkeeper.state": account.state,
        "turnkeeper.first_token": account.first_token,
        "turnkeeper.degraded": account.degraded or None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _asked(account: TurnReport) -> dict[str, AttributeValue]:
    known = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": account.model,
        "gen_ai.usage.input_tokens": account.input_tokens,
        "gen_ai.usage.output_tokens": account.output_tokens,
        "turnkeeper.upstream": account.upstream,
    }
    return {name: value for name, value in known.items() if value is not None}
