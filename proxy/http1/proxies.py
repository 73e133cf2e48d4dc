"""The proxy that the environment puts between us and the model."""

import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import unquote_to_bytes, urlsplit

from proxy.errors import ConfigError
from proxy.http1.origin import Origin, ascii_host, bracketed, port_of

_ENTRY = re.compile(r"(?:\[([^\]]+)\]|([^:]+))(?::(\d+))?")


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
