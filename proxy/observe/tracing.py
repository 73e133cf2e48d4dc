"""The exporter of spans; OpenTelemetry is imported only where it is configured."""

from typing import TYPE_CHECKING

from proxy.hostname import ADVICE, host_of, is_host_name

if TYPE_CHECKING:
    from proxy.observe.spans import Spans


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
