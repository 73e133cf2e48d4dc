"""The server that a base URL names."""

import asyncio
import errno
import re
import ssl
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

from proxy.errors import ConfigError, NoFilesLeft, UpstreamError, UpstreamUnreachable
from proxy.hostname import is_host_name
from proxy.upstream.connection import Connection, RequestHead

_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[0-9A-Za-z._:%-]+")
_PREFIX = re.compile(r"[\x21\x24-\x3e\x40-\x7e]*")
_ENTRY = re.compile(r"(?:\[([^\]]+)\]|([^:]+))(?::(\d+))?")
Trust = Callable[[], ssl.SSLContext]
# No fault of whoever is asked.
_NO_FILES_LEFT: Final = {errno.EMFILE, errno.ENFILE}
_HEAD = 16 << 10
_PASSED = b"2"


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host and port of the model, and the path that every request's path is added to."""

    scheme: str
    host: str
    port: int
    prefix: str

    @classmethod
    def of(cls, base_url: str) -> "Origin":
        """The origin that `base_url` names; ValueError says what is wrong with it."""
        parts = urlsplit(base_url)
        _check(parts)
        return cls(parts.scheme, ascii_host(parts.hostname or ""), port_of(parts), parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        """Host and port as CONNECT names them, an IPv6 address in brackets."""
        return f"{bracketed(self.host)}:{self.port}"

    @property
    def host_header(self) -> str:
        """The authority, without the port that goes without saying."""
        return bracketed(self.host) if self.port == _PORTS[self.scheme] else self.authority

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host_header}"


def port_of(parts: SplitResult) -> int:
    """The port that a URL names, or that goes without saying."""
    try:
        return parts.port or _PORTS[parts.scheme]
    except ValueError:
        # What stands in its place may be a piece of a password: it is not shown.
        raise ValueError("the port in a base_url or proxy URL must be a number up to 65535") from None


def bracketed(host: str) -> str:
    """The host as a URL writes it."""
    return f"[{host}]" if ":" in host else host


def ascii_host(host: str) -> str:
    """The host as DNS and TLS know it."""
    try:
        name = host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError:
        name = ""
    if not _HOST.fullmatch(name) or not is_host_name(name):
        raise ValueError(f"{host!r} is no valid host name")
    return name


def _check(parts: SplitResult) -> None:
    if parts.scheme not in _PORTS:
        raise ValueError(f"base_url must begin with http:// or https://, not {parts.scheme or 'nothing'!r}")
    if "@" in parts.netloc:
        raise ValueError("base_url must not hold a user name or password; send an authorization header")
    if parts.query or parts.fragment:
        raise ValueError("base_url must not hold a query or a fragment")
    if not parts.hostname or not _PREFIX.fullmatch(parts.path):
        raise ValueError("base_url needs a host, and a path of plain ASCII without spaces")


@dataclass(frozen=True, slots=True)
class Proxy:
    """Where to knock instead of at the origin, and the pass to show there."""

    scheme: str
    host: str
    port: int
    authorization: bytes

    @classmethod
    def of(cls, url: str) -> "Proxy":
        """The proxy at `url`; a bare host:port counts as http."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"a proxy must be an http:// or https:// URL, not {parts.scheme!r}")
        shown = _basic(parts.username, parts.password)
        return cls(parts.scheme, ascii_host(parts.hostname), port_of(parts), shown)

    @classmethod
    def between(cls, origin: Origin, environ: Mapping[str, str]) -> "Proxy | None":
        """The proxy that `environ` asks for on the way to `origin`, if any.

        Raises ConfigError, which names the variable, where that is no proxy's URL.
        """
        own = f"{origin.scheme}_proxy"
        name = own if _value(environ, own) else "all_proxy"
        url = _value(environ, name)
        if not url or _bypassed(origin, _value(environ, "no_proxy")):
            return None
        try:
            return cls.of(url)
        except ValueError:
            # What is wrong may be a piece of a password: it is not shown.
            raise ConfigError(f"{name.upper()} in the environment: write http://HOST:PORT") from None

    def __str__(self) -> str:
        return f"{self.scheme}://{bracketed(self.host)}:{self.port}"


def _value(environ: Mapping[str, str], name: str) -> str:
    return (environ.get(name) or environ.get(name.upper()) or "").strip()


def _basic(user: str | None, password: str | None) -> bytes:
    if user is None and password is None:
        return b""
    pair = unquote_to_bytes(user or "") + b":" + unquote_to_bytes(password or "")
    return b"Basic " + b64encode(pair)


def _bypassed(origin: Origin, no_proxy: str) -> bool:
    return any(_covers(entry, origin) for entry in re.split(r"[\s,]+", no_proxy.lower()) if entry)


def _covers(entry: str, origin: Origin) -> bool:
    match = _ENTRY.fullmatch(entry)
    name, port = (match[1] or match[2], match[3]) if match else (entry, None)
    if port and int(port) != origin.port:
        return False
    if name == "*":
        return True
    if (address := _address(origin.host)) is not None:
        return _contains(name, address)
    return f".{origin.host}".endswith(f".{name.lstrip('*.')}")


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _contains(name: str, address: IPv4Address | IPv6Address) -> bool:
    try:
        return address in ip_network(name, strict=False)
    except ValueError:
        return False


def system_trust() -> ssl.SSLContext:
    """The authorities that this machine trusts, read when this is called: that takes some 20 ms."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


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
    def envelope(self) -> RequestHead:
        """What every request along this route has in its head."""
        origin, proxy, host = self.origin, self.proxy, self.origin.host_header.encode()
        if proxy is None or self.tunnelled:
            return RequestHead(origin.prefix.encode(), host, b"")
        return RequestHead(f"{origin}{origin.prefix}".encode(), host, _pass(proxy))

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


class Dialer:
    """Opens connections along one route."""

    def __init__(self, route: Route) -> None:
        self._route = route

    async def dial(self, connection: Connection) -> None:
        """`connection` can carry requests now; UpstreamUnreachable or NoFilesLeft says why it cannot."""
        try:
            await (self._through(connection) if self._route.tunnelled else self._straight(connection))
        except ssl.SSLCertVerificationError as error:
            raise UpstreamUnreachable(self._distrust(error)) from None
        except TimeoutError:
            raise
        except (OSError, UnicodeError) as error:  # the latter for a name that cannot be looked up
            raise self._fault(error) from None

    async def _straight(self, connection: Connection) -> None:
        first = self._route.first
        tls = self._route.tls if first.scheme == "https" else None
        await asyncio.get_running_loop().create_connection(
            lambda: connection, first.host, first.port, ssl=tls
        )

    async def _through(self, connection: Connection) -> None:
        route, loop, first = self._route, asyncio.get_running_loop(), self._route.first
        tls = route.tls if first.scheme == "https" else None
        raw, tunnel = await loop.create_connection(
            lambda: Tunnel(str(first)), first.host, first.port, ssl=tls
        )
        try:
            await tunnel.opened(raw, route.connect_request)
            await self._encrypt(raw, connection, route.origin)
        except BaseException:
            # Aborting one that has ended raises in asyncio (3.11), and TLS may have ended it already.
            if not raw.is_closing():
                raw.abort()
            raise

    async def _encrypt(self, raw: asyncio.Transport, connection: Connection, origin: Origin | Proxy) -> None:
        if (tls := self._route.tls) is None:
            raise UpstreamUnreachable(f"no TLS for {origin}")
        loop = asyncio.get_running_loop()
        transport = await loop.start_tls(raw, connection, tls, server_hostname=origin.host)
        if transport is None:
            raise ConnectionResetError("the connection was lost during the TLS handshake")
        connection.connection_made(transport)

    def _fault(self, error: OSError | UnicodeError) -> UpstreamError:
        told = f"cannot connect to {self._route}: {error}"
        if isinstance(error, OSError) and error.errno in _NO_FILES_LEFT:
            return NoFilesLeft(f"{told}; let this server have more of them (ulimit -n)")
        return UpstreamUnreachable(f"{told}; check its address")

    def _distrust(self, error: ssl.SSLCertVerificationError) -> str:
        return (
            f"the TLS certificate of {self._route} was not accepted: {error.verify_message}; "
            "check the host name, and SSL_CERT_FILE for a certificate authority of your own"
        )


class Tunnel(asyncio.Protocol):
    """The talk with a proxy before TLS begins: CONNECT, and its yes or no."""

    def __init__(self, proxy: str) -> None:
        self._proxy = proxy
        self._seen = b""
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def opened(self, transport: asyncio.Transport, connect_request: bytes) -> None:
        """Return when the proxy has let us through; UpstreamUnreachable when it did not."""
        transport.write(connect_request)
        await self._answered

    def data_received(self, data: bytes) -> None:
        """Some bytes of the proxy's answer came."""
        self._seen += data
        if b"\r\n\r\n" in self._seen or len(self._seen) > _HEAD:
            self._judge()

    def connection_lost(self, exc: Exception | None) -> None:
        """The proxy is gone."""
        self._refuse(f"closed the connection: {exc or 'without an answer'}")

    def _judge(self) -> None:
        line, _, _ = self._seen.partition(b"\r\n")
        version, _, status = line.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not status.startswith(_PASSED):
            self._refuse(f"said {line[:80].decode('latin-1')!r}")
        elif not self._answered.done():
            self._answered.set_result(None)

    def _refuse(self, what: str) -> None:
        if not self._answered.done():
            self._answered.set_exception(
                UpstreamUnreachable(
                    f"the proxy {self._proxy} {what}; check the proxy variables and its user name"
                )
            )
            # Whoever waited may be gone by now: the loop need not complain.
            self._answered.exception()
