"""The models that a configuration names, made ready."""

from collections.abc import Iterator, Mapping
from functools import cache

from proxy.configuration.settings import Settings
from proxy.configuration.settings import Upstream as UpstreamSettings
from proxy.health import Health
from proxy.http1.route import Trust
from proxy.http1.trust import system_trust
from proxy.kinds import KINDS
from proxy.practice import Practice
from proxy.target import Target
from proxy.upstream import HttpUpstream, Upstream
from proxy.version import VERSION

_PRACTICE = "practice:"
_SHORTEST_SECRET = 8


def targets_of(settings: Settings, environ: Mapping[str, str]) -> Mapping[str, Target]:
    """Each upstream of the settings; nothing is connected. Certificates are read once, if at all."""
    trust = cache(system_trust)
    return {name: _target(name, upstream, environ, trust) for name, upstream in settings.upstreams.items()}


def _target(name: str, settings: UpstreamSettings, environ: Mapping[str, str], trust: Trust) -> Target:
    return Target(
        name=name,
        health=Health(name=name),
        upstream=_upstream(settings, environ, trust),
        kind=KINDS[settings.accepts],
        headers=tuple(_headers(settings)),
        secrets=tuple(_secrets(settings)),
        model=settings.model or None,
        allow=frozenset(settings.allow),
        forward_headers=settings.forward_headers,
        forward_key=settings.forward_key,
        first_token=settings.first_token,
        first_content=settings.first_content,
        total=settings.total,
        retries=settings.retries,
    )


def _upstream(settings: UpstreamSettings, environ: Mapping[str, str], trust: Trust) -> Upstream:
    if settings.base_url == _PRACTICE:
        return Practice()
    return HttpUpstream(
        settings.base_url,
        connect=settings.connect,
        max_connections=settings.max_connections,
        environ=environ,
        trust=trust,
    )


def _headers(settings: UpstreamSettings) -> Iterator[tuple[bytes, bytes]]:
    yield b"content-type", b"application/json"
    yield b"accept-encoding", b"identity"  # a packed stream arrives late, if at all
    yield b"user-agent", f"turnkeeper/{VERSION}".encode()
    key = settings.api_key.get_secret_value()
    if key and not settings.forward_key:
        name, value = ("api-key", key) if settings.accepts == "azure" else ("authorization", f"Bearer {key}")
        yield name.encode(), value.encode()
    for header, secret in settings.headers.items():
        yield header.lower().encode(), secret.get_secret_value().encode()


def _secrets(settings: UpstreamSettings) -> Iterator[bytes]:
    for secret in (settings.api_key, *settings.headers.values()):
        written = secret.get_secret_value().encode()
        # Without the scheme before it, as in ``Bearer``. What is shorter is a number or a word of its own.
        if len(bare := written.rpartition(b" ")[2]) >= _SHORTEST_SECRET:
            yield bare
