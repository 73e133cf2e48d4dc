"""W3C Trace Context, and the exporter of spans; OpenTelemetry is imported only where it is configured."""

import re
import secrets
from typing import TYPE_CHECKING, Final, Self

import msgspec

from proxy.hostname import ADVICE, host_of, is_host_name

if TYPE_CHECKING:
    from proxy.observe.spans import Spans

HEADER: Final = "traceparent"
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class TraceContext(msgspec.Struct, frozen=True):
    """The ids of one turn: of its trace, of its parent span, and of the span of its upstream request."""

    trace_id: int
    parent_id: int | None
    span_id: int
    sampled: bool = True

    @classmethod
    def of(cls, header: str | None) -> Self:
        """The context that a ``traceparent`` header gives, or a new trace."""
        found = _PARENT.fullmatch(header or "")
        span_id = secrets.randbits(64) or 1
        if not found:
            return cls(secrets.randbits(128) or 1, None, span_id)
        return cls(int(found[1], 16), int(found[2], 16), span_id, sampled=bool(int(found[3], 16) & 1))

    @property
    def traceparent(self) -> str:
        """The ``traceparent`` header of the upstream request."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.sampled:02x}"


def span_exporter(endpoint: str) -> "Spans | None":
    """The exporter of spans to an OTLP address; ``None`` for an empty one."""
    return _spans()(endpoint) if endpoint else None


def check_endpoint(endpoint: str) -> str:
    """The OTLP address, which may be empty; nothing is connected. Raises ValueError."""
    if endpoint:
        host = host_of(endpoint)
        if not host:
            raise ValueError("write an OTLP address over HTTP, such as http://127.0.0.1:4318/v1/traces")
        if not is_host_name(host):
            raise ValueError(ADVICE)
        _spans()
    return endpoint


def _spans() -> "type[Spans]":
    try:
        from proxy.observe.spans import Spans  # noqa: PLC0415 - needs the extra
    except ModuleNotFoundError as error:
        raise ValueError(f"this needs the module {error.name}; install turnkeeper[traces]") from error
    return Spans
