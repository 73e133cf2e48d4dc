"""The server that a base URL names."""

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from proxy.hostname import is_host_name

_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[0-9A-Za-z._:%-]+")
_PREFIX = re.compile(r"[\x21\x24-\x3e\x40-\x7e]*")


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
