"""The way to the model."""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from proxy.http1.envelope import Envelope
from proxy.http1.origin import Origin
from proxy.http1.proxies import Proxy

Trust = Callable[[], ssl.SSLContext]


@dataclass(frozen=True, slots=True)
class Route:
    """The origin, the proxy before it if there is one, and the TLS that either needs."""

    origin: Origin
    proxy: Proxy | None
    tls: ssl.SSLContext | None

    @classmethod
    def of(cls, base_url: str, environ: Mapping[str, str], trust: Trust) -> "Route":
        """The route to `base_url` as `environ` wants it; `trust` is asked where there is TLS."""
        origin = Origin.of(base_url)
        proxy = Proxy.between(origin, environ)
        secure = origin.scheme == "https" or (proxy is not None and proxy.scheme == "https")
        return cls(origin, proxy, _verifying(trust()) if secure else None)

    @property
    def tunnelled(self) -> bool:
        """Whether the proxy is asked to connect through, for TLS that only the origin can open."""
        return self.proxy is not None and self.origin.scheme == "https"

    @property
    def first(self) -> Origin | Proxy:
        """Who is at the other end of the socket."""
        return self.proxy or self.origin

    @property
    def envelope(self) -> Envelope:
        """What every request along this route has in its head."""
        origin, proxy, host = self.origin, self.proxy, self.origin.host_header.encode()
        if proxy is None or self.tunnelled:
            return Envelope(origin.prefix.encode(), host, b"")
        return Envelope(f"{origin}{origin.prefix}".encode(), host, _pass(proxy))

    @property
    def connect_request(self) -> bytes:
        """What asks the proxy for a tunnel to the origin."""
        authority = self.origin.authority.encode()
        shown = _pass(self.proxy) if self.proxy else b""
        return b"CONNECT %b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (authority, authority, shown)

    def __str__(self) -> str:
        return f"{self.origin} through the proxy {self.proxy}" if self.proxy else f"{self.origin}"


def _pass(proxy: Proxy) -> bytes:
    return b"proxy-authorization: %b\r\n" % proxy.authorization if proxy.authorization else b""


def _verifying(context: ssl.SSLContext) -> ssl.SSLContext:
    if context.verify_mode is not ssl.CERT_REQUIRED or not context.check_hostname:
        raise ValueError("the ssl context must verify certificates and host names")
    return context
