"""Turns as OpenTelemetry's spans; imported only if configured, because it needs the extra ``traces``."""

from collections import deque
from collections.abc import Mapping

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from proxy.observe.observation import TraceContext, TurnReport
from proxy.version import VERSION

_TIMEOUT = 2.0
_NANOSECONDS = 1_000_000_000
_UPSTREAM = "upstream"


class Spans:
    """Makes spans of turns that have ended, and of their stages; a thread sends them."""

    def __init__(self, endpoint: str) -> None:
        self._ids = _PlannedIds()
        resource = Resource.create({"service.name": "turnkeeper", "service.version": VERSION})
        self._provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_TIMEOUT)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("turnkeeper", VERSION)

    def add(self, turn: TurnReport, context: TraceContext) -> None:
        """Makes the spans of a turn and its stages."""
        self._ids.trace_id = context.trace_id
        parent = None
        if context.parent_id:
            flags = TraceFlags(TraceFlags.SAMPLED if context.sampled else TraceFlags.DEFAULT)
            remote = SpanContext(context.trace_id, context.parent_id, is_remote=True, trace_flags=flags)
            parent = set_span_in_context(NonRecordingSpan(remote))
        start = int(turn.at * _NANOSECONDS)
        end = start + int(turn.duration * _NANOSECONDS)
        attributes = _without_none(
            {
                "http.response.status_code": turn.status,
                "error.type": turn.code if turn.outcome == "failed" else None,
                "gen_ai.conversation.id": turn.session,
                "turnkeeper.turn": turn.id,
                "turnkeeper.request": turn.request,
                "turnkeeper.pipeline": turn.pipeline,
                "turnkeeper.state": turn.state,
                "turnkeeper.first_token": turn.first_token,
                "turnkeeper.degraded": turn.degraded or None,
            }
        )
        span = self._tracer.start_span(
            "turn", parent, SpanKind.SERVER, attributes=attributes, start_time=start
        )
        if turn.outcome == "failed":
            span.set_status(Status(StatusCode.ERROR, turn.code))
        inside = set_span_in_context(span)
        begin = start + int(turn.lead * _NANOSECONDS)
        for stage, seconds in turn.stages:
            if stage != _UPSTREAM:
                until, kind, details = begin + int(seconds * _NANOSECONDS), SpanKind.INTERNAL, None
            else:  # it lasts until the answer has ended
                until, kind = end, SpanKind.CLIENT
                self._ids.span_ids.append(context.span_id)
                details = _without_none(
                    {
                        "gen_ai.operation.name": "chat",
                        "gen_ai.request.model": turn.model,
                        "gen_ai.usage.input_tokens": turn.input_tokens,
                        "gen_ai.usage.output_tokens": turn.output_tokens,
                        "turnkeeper.upstream": turn.upstream,
                    }
                )
            self._tracer.start_span(stage, inside, kind, attributes=details, start_time=begin).end(until)
            begin = until
        span.end(end)

    def close(self) -> None:
        """Sends the remaining spans, which may take seconds."""
        self._provider.shutdown()


class _PlannedIds(IdGenerator):
    """Generates the ids that were set in advance, and random ids after those."""

    def __init__(self) -> None:
        self.trace_id = 0
        self.span_ids: deque[int] = deque()
        self._random = RandomIdGenerator()

    def generate_span_id(self) -> int:
        return self.span_ids.popleft() if self.span_ids else self._random.generate_span_id()

    def generate_trace_id(self) -> int:
        return self.trace_id


def _without_none(attributes: Mapping[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    return {name: value for name, value in attributes.items() if value is not None}
