"""Where spans go, if anywhere: what needs OpenTelemetry is loaded only then."""

from importlib.metadata import EntryPoint
from typing import Final, Protocol

from proxy.hostname import ADVICE, host_of, is_host_name
from proxy.telemetry.account import Account
from proxy.telemetry.lineage import Lineage

_SPANS: Final = EntryPoint("spans", "proxy.telemetry.spans:Spans", "turnkeeper.traces")


class Tracing(Protocol):
    """Who is told of turns that are part of a trace."""

    def tell(self, account: Account, lineage: Lineage) -> None:
        """Takes a turn that has ended."""

    def close(self) -> None:
        """Sends what is left; it may take seconds."""


class _Maker(Protocol):
    def __call__(self, endpoint: str) -> Tracing: ...


def traced_to(endpoint: str) -> Tracing | None:
    """What sends spans to an OTLP address; ``None`` for an empty one."""
    return _maker()(endpoint) if endpoint else None


def address(given: str) -> str:
    """An address to which spans can be sent, or none; nothing is connected. Raises ValueError."""
    if given:
        host = host_of(given)
        if not host:
            raise ValueError("write an OTLP address over HTTP, such as http://127.0.0.1:4318/v1/traces")
        if not is_host_name(host):
            raise ValueError(ADVICE)
        _maker()
    return given


def _maker() -> _Maker:
    try:
        return _SPANS.load()  # type: ignore[no-any-return]
    except ModuleNotFoundError as error:
        raise ValueError(f"this needs the module {error.name}; install turnkeeper[traces]") from error
