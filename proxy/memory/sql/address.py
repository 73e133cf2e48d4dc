"""Where a PostgreSQL server is: an address as its driver can read it."""

import re
from typing import Final, NoReturn
from urllib.parse import parse_qs, unquote, urlsplit

from proxy.hostname import ADVICE, is_host_name

_HOST: Final = re.compile(
    r"/.*|(?:\[[0-9A-Fa-f:.]+(?:%\w+)?\]|(?P<name>[^\s:\[\]@/]+))(?::(?P<port>[0-9]{1,5}))?"
)
_HIGHEST: Final = 65535
_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_HOW: Final = (
    "write postgresql://user:password@host:port/database, and in a password %40 for '@', %3A for ':',"
    " %2F for '/', %3F for '?', %23 for '#', %5B for '[' and %25 for '%'"
)


def read(url: str) -> str:
    """The address, where the driver can read it; it would say so at each turn, and not before.

    Raises ValueError, which never shows what was written: it may hold a password.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        _refuse(_HOW)
    before, at, hosts = parts.netloc.partition("@")
    if "@" in hosts or parts.fragment or (not at and "@" in parts.path + parts.query):
        _refuse(_HOW)
    _check_hosts(hosts if at else before)
    _check_options(parts.query)
    return url


def _check_hosts(written: str) -> None:
    for host in written.split(",") if written else ():
        found = _HOST.fullmatch(host)
        if not found or not _is_port(found["port"] or "5432"):
            _refuse(_HOW)
        name = unquote(found["name"] or "/")  # a socket's path may be written as a host
        if not name.startswith("/") and not is_host_name(name):
            _refuse(ADVICE)


def _check_options(written: str) -> None:
    try:
        options = parse_qs(written, strict_parsing=bool(written))
    except ValueError:
        _refuse("its options are written name=value, with & between two")
    _check_hosts(options.get("host", [""])[-1])
    if not all(map(_is_port, options.get("port", ["5432"])[-1].split(","))):
        _refuse(f"a port is a number from 1 to {_HIGHEST}")
    if options.get("sslmode", ["prefer"])[-1] not in _MODES:
        _refuse(f"sslmode is one of {', '.join(_MODES)}")


def _is_port(written: str) -> bool:
    return written.isascii() and written.isdigit() and 0 < int(written[:6]) <= _HIGHEST


def _refuse(why: str) -> NoReturn:
    raise ValueError(f"the address of PostgreSQL cannot be understood: {why}") from None
