"""Opens connections to an upstream: origin, proxy, tunnel, TLS."""

import asyncio
import errno
import re
import ssl
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import unquote_to_bytes, urlsplit

from proxy.answer.response import Headers
from proxy.errors import CHECK_ADDRESS, ConfigError, TooManyOpenFiles, UpstreamUnreachable
from proxy.hostname import ADVICE, host_of, is_host_name
from proxy.upstream.connection import Connection

Trust = Callable[[], ssl.SSLContext]

_PORTS = {"http": 80, "https": 443}
_BASE_URL: Final = "write an address such as https://api.example.com/v1, or practice: for the practice model"
_CHAT_COMPLETIONS: Final = "/chat/completions"
_METHOD = re.compile(r"(?!HEAD$|CONNECT$)[A-Z]+")
_PATH = re.compile(r"/[\x21\x22\x24-\x7e]*")
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_FRAMING = frozenset(
    (
        *(b"accept-encoding", b"connection", b"content-length", b"expect", b"host", b"te", b"trailer"),
        *(b"transfer-encoding", b"upgrade"),
    )
)
_HOST = re.compile(r"[0-9A-Za-z._:%-]+")
_PREFIX = re.compile(r"[\x21\x24-\x3e\x40-\x7e]*")
_NO_PROXY_ENTRY = re.compile(r"(?:\[([^\]]+)\]|([^:]+))(?::(\d+))?")
# These errors are about this process, not about the upstream.
_NO_FILES_LEFT: Final = {errno.EMFILE, errno.ENFILE}
_LONGEST_HEAD = 16 << 10


def system_trust() -> ssl.SSLContext:
    """Reads the certificate authorities of this machine, in some 20 ms; returns a TLS context for them."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host and port of an upstream, and the ``prefix`` of every request's path."""

    scheme: str
    host: str
    port: int
    prefix: str

    @classmethod
    def of(cls, base_url: str) -> "Origin":
        """Parses a base URL; raises ValueError, whose message says what to write and shows no key."""
        if re.search(r"[^!-~]", base_url):
            raise ValueError("an address must not contain spaces or characters beyond ASCII")
        rest, host = base_url.partition("://")[2], host_of(base_url)
        if not host:
            raise ValueError(_BASE_URL)
        if not is_host_name(host):
            raise ValueError(ADVICE)
        if "@" in rest.partition("/")[0]:
            raise ValueError("an address must not contain a user or password; use api_key or headers")
        if "?" in rest or "#" in rest:
            raise ValueError("remove the '?' or '#' and everything after it")
        if rest.rstrip("/").endswith(_CHAT_COMPLETIONS):
            raise ValueError(f"remove {_CHAT_COMPLETIONS} from the end; it is added for every call")
        parts = urlsplit(base_url)
        if not (_HOST.fullmatch(host) and _PREFIX.fullmatch(parts.path)):
            raise ValueError(_BASE_URL)
        return cls(parts.scheme, host, parts.port or _PORTS[parts.scheme], parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        """Host and port, with an IPv6 address in brackets, as in CONNECT."""
        return f"{_bracketed(self.host)}:{self.port}"

    @property
    def host_header(self) -> str:
        """The authority without a default port."""
        return _bracketed(self.host) if self.port == _PORTS[self.scheme] else self.authority

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host_header}"


@dataclass(frozen=True, slots=True)
class Proxy:
    """The proxy that the environment puts before an upstream, and the credentials for it."""

    scheme: str
    host: str
    port: int
    authorization: bytes

    @classmethod
    def of(cls, url: str) -> "Proxy":
        """Parses a proxy's URL; a bare host:port counts as http. Raises ValueError."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"a proxy must be an http:// or https:// URL, not {parts.scheme!r}")
        authorization = b""
        if parts.username is not None or parts.password is not None:
            user, password = unquote_to_bytes(parts.username or ""), unquote_to_bytes(parts.password or "")
            authorization = b"Basic " + b64encode(user + b":" + password)
        host = parts.hostname
        # The form for DNS and TLS.
        name = host if host.isascii() else host.encode("idna").decode("ascii")
        if not _HOST.fullmatch(name) or not is_host_name(name):
            raise ValueError(f"{host!r} is not a valid host name")
        return cls(parts.scheme, name, parts.port or _PORTS[parts.scheme], authorization)

    @classmethod
    def between(cls, origin: Origin, environ: Mapping[str, str]) -> "Proxy | None":
        """The proxy that `environ` sets for `origin`, or ``None``.

        Raises ConfigError, which names the variable, where its value is not the URL of a proxy.
        """

        def value(name: str) -> str:
            return (environ.get(name) or environ.get(name.upper()) or "").strip()

        scheme_proxy = f"{origin.scheme}_proxy"
        name = scheme_proxy if value(scheme_proxy) else "all_proxy"
        url = value(name)
        exceptions = re.split(r"[\s,]+", value("no_proxy").lower())
        if not url or any(_covers(entry, origin) for entry in exceptions if entry):
            return None
        try:
            return cls.of(url)
        except ValueError:
            # The value is not shown, since it may hold a password.
            raise ConfigError(f"{name.upper()} in the environment: write http://HOST:PORT") from None

    @property
    def header(self) -> bytes:
        """The header line with the credentials; empty where there are none."""
        return b"proxy-authorization: %b\r\n" % self.authorization if self.authorization else b""

    def __str__(self) -> str:
        return f"{self.scheme}://{_bracketed(self.host)}:{self.port}"


def _covers(entry: str, origin: Origin) -> bool:
    """Whether an entry of no_proxy covers this origin. It is a name, a domain, an address or a network."""
    match = _NO_PROXY_ENTRY.fullmatch(entry)
    name, port = (match[1] or match[2], match[3]) if match else (entry, None)
    if port and int(port) != origin.port:
        return False
    if name == "*":
        return True
    try:
        address = ip_address(origin.host)
    except ValueError:
        return f".{origin.host}".endswith(f".{name.lstrip('*.')}")
    try:
        return address in ip_network(name, strict=False)
    except ValueError:
        return False


def _bracketed(host: str) -> str:
    """The host, in brackets if it is an IPv6 address."""
    return f"[{host}]" if ":" in host else host


@dataclass(frozen=True)
class Route:
    """An origin, the proxy before it if there is one, and the TLS context if either uses https."""

    origin: Origin
    proxy: Proxy | None
    tls: ssl.SSLContext | None

    @classmethod
    def of(cls, base_url: str, environ: Mapping[str, str], trust: Trust) -> "Route":
        """The route to `base_url`, with the proxy that `environ` sets; `trust` is called only for TLS.

        Raises ValueError for an invalid URL, and for a TLS context that does not verify; ConfigError for an
        invalid proxy.
        """
        origin = Origin.of(base_url)
        proxy = Proxy.between(origin, environ)
        if "https" not in (origin.scheme, proxy and proxy.scheme):
            return cls(origin, proxy, None)
        context = trust()
        if context.verify_mode is not ssl.CERT_REQUIRED or not context.check_hostname:
            raise ValueError("the ssl context must verify certificates and host names")
        return cls(origin, proxy, context)

    @property
    def tunnelled(self) -> bool:
        """Whether the proxy is asked for a tunnel, because the origin uses TLS."""
        return self.proxy is not None and self.origin.scheme == "https"

    @property
    def first(self) -> Origin | Proxy:
        """The other end of the socket: the proxy if there is one, else the origin."""
        return self.proxy or self.origin

    @cached_property
    def _own_lines(self) -> tuple[str, bytes, bytes]:
        """The prefix of a request's path, the header line for the proxy, and the host line."""
        host = b"host: %b\r\n" % self.origin.host_header.encode()
        if self.proxy is None or self.tunnelled:
            return self.origin.prefix, b"", host
        return f"{self.origin}{self.origin.prefix}", self.proxy.header, host

    def request_head(self, method: str, path: str, headers: Headers) -> bytes:
        """The request line and the headers, without ``content-length`` and the blank line.

        Raises ValueError for a method, a path or a header that is not valid in HTTP.
        """
        if not _METHOD.fullmatch(method) or not _PATH.fullmatch(path):
            raise ValueError(f"{method!r} {path!r}: not a method and a path that this client sends")
        before_path, proxy_line, host_line = self._own_lines
        request_line = f"{method} {before_path}{path} HTTP/1.1\r\n".encode()
        # Compression would delay a stream.
        lines = [request_line, host_line, proxy_line, b"accept-encoding: identity\r\n"]
        for name, value in headers:
            if not _NAME.fullmatch(name) or name in _FRAMING:
                raise ValueError(
                    f"header {name!r}: no lower-case header name, or one that the client sets itself"
                )
            # The value is not shown, since it may be a key.
            if not _VALUE.fullmatch(value):
                raise ValueError(f"header {name!r}: its value holds a control character")
            lines.append(b"%b: %b\r\n" % (name, value))
        return b"".join(lines)

    @property
    def connect_request(self) -> bytes:
        """The request that asks the proxy for a tunnel to the origin."""
        authority = self.origin.authority.encode()
        header = self.proxy.header if self.proxy else b""
        return b"CONNECT %b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (authority, authority, header)

    def __str__(self) -> str:
        return f"{self.origin} through the proxy {self.proxy}" if self.proxy else f"{self.origin}"

    async def dial(self, connection: Connection) -> None:
        """Connects `connection` to the upstream.

        Raises UpstreamUnreachable and TooManyOpenFiles.
        """
        first, loop = self.first, asyncio.get_running_loop()
        tls = self.tls if first.scheme == "https" else None
        try:
            if self.tunnelled:
                await self._dial_through_tunnel(connection, tls)
            else:
                await loop.create_connection(lambda: connection, first.host, first.port, ssl=tls)
        except ssl.SSLCertVerificationError as error:
            raise UpstreamUnreachable(
                f"the TLS certificate of {self} was not accepted: {error.verify_message}; "
                "check the host name, and SSL_CERT_FILE for a certificate authority of your own"
            ) from None
        except (OSError, UnicodeError) as error:  # UnicodeError for a name that cannot be looked up
            what = f"cannot connect to {self}: {error}"
            if isinstance(error, OSError) and error.errno in _NO_FILES_LEFT:
                raise TooManyOpenFiles(f"{what}; raise this server's limit (ulimit -n)") from None
            raise UpstreamUnreachable(what + CHECK_ADDRESS) from None

    async def _dial_through_tunnel(self, connection: Connection, tls: ssl.SSLContext | None) -> None:
        """Connects `connection` through a tunnel; ``tls`` is the context for the proxy itself."""
        loop, first = asyncio.get_running_loop(), self.first
        assert self.tls is not None  # noqa: S101 - a tunnel is for an origin with https
        raw, tunnel = await loop.create_connection(
            lambda: Tunnel(str(first)), first.host, first.port, ssl=tls
        )
        try:
            await tunnel.open(raw, self.connect_request)
            transport = await loop.start_tls(raw, connection, self.tls, server_hostname=self.origin.host)
        except BaseException:
            # In Python 3.11, aborting a closed transport raises, and TLS may have closed this one already.
            if not raw.is_closing():
                raw.abort()
            raise
        if transport is None:
            raise ConnectionResetError("the connection was lost during the TLS handshake")
        connection.connection_made(transport)


class Tunnel(asyncio.Protocol):
    """The exchange with a proxy before TLS begins: the CONNECT request and its answer."""

    def __init__(self, proxy: str) -> None:
        self._proxy = proxy
        self._data = b""
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self, transport: asyncio.Transport, connect_request: bytes) -> None:
        """Returns once the proxy has opened the tunnel; raises UpstreamUnreachable where it refuses."""
        transport.write(connect_request)
        await self._answered

    def data_received(self, data: bytes) -> None:
        """Collects the proxy's answer; the tunnel is open with a status of 200 to 299."""
        self._data += data
        if b"\r\n\r\n" not in self._data and len(self._data) <= _LONGEST_HEAD:
            return
        line, _, _ = self._data.partition(b"\r\n")
        version, _, status = line.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not status.startswith(b"2"):
            self._fail(f"said {line[:80].decode('latin-1')!r}")
        elif not self._answered.done():
            self._answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fails the tunnel, unless it is open."""
        self._fail(f"closed the connection: {exc or 'without an answer'}")

    def _fail(self, what: str) -> None:
        if not self._answered.done():
            message = f"the proxy {self._proxy} {what}; check the proxy variables and its user name"
            self._answered.set_exception(UpstreamUnreachable(message))
            # Marks the error as retrieved: a cancelled dial never awaits it, and the loop would log it.
            self._answered.exception()
