"""A place in a trace that others began, or that begins here (W3C Trace Context)."""

import re
import secrets
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Final, Self

import msgspec

from proxy.hostname import ADVICE, host_of, is_host_name

if TYPE_CHECKING:
    from proxy.observe.spans import Spans

HEADER: Final = "traceparent"
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SPANS: Final = EntryPoint("spans", "proxy.observe.spans:Spans", "turnkeeper.traces")


class TraceContext(msgspec.Struct, frozen=True):
    """One turn's ids: of the trace, of whose child the turn is, and of the question to the model."""

    trace_id: int
    parent_id: int | None
    span_id: int
    sampled: bool = True

    @classmethod
    def of(cls, header: str | None) -> Self:
        """The trace that a ``traceparent`` names; a new one where it names none."""
        found = _PARENT.fullmatch(header or "")
        if not found:
            return cls(secrets.randbits(128) or 1, None, secrets.randbits(64) or 1)
        sampled = bool(int(found[3], 16) & 1)
        return cls(int(found[1], 16), int(found[2], 16), secrets.randbits(64) or 1, sampled)

    @property
    def traceparent(self) -> str:
        """The ``traceparent`` for the model."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.sampled:02x}"


def span_exporter(endpoint: str) -> "Spans | None":
    """What sends spans to an OTLP address; ``None`` for an empty one."""
    return _maker()(endpoint) if endpoint else None


def check_endpoint(given: str) -> str:
    """An address to which spans can be sent, or none; nothing is connected. Raises ValueError."""
    if given:
        host = host_of(given)
        if not host:
            raise ValueError("write an OTLP address over HTTP, such as http://127.0.0.1:4318/v1/traces")
        if not is_host_name(host):
            raise ValueError(ADVICE)
        _maker()
    return given


def _maker() -> "type[Spans]":
    try:
        return _SPANS.load()  # type: ignore[no-any-return]
    except ModuleNotFoundError as error:
        raise ValueError(f"this needs the module {error.name}; install turnkeeper[traces]") from error
