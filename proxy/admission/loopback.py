"""What reaches this machine alone."""

import ipaddress
import re

_HOST = re.compile(r"(?P<name>\[::1\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
# The dot at the end says that the name is whole (RFC 1034, 3.1).
_LOCALHOST = re.compile(r"(?:[a-z0-9_-]+\.)*localhost\.?")


def is_loopback_address(host: str) -> bool:
    """Whether listening on this host, an address or ``localhost``, admits callers of this machine only."""
    return host.lower() == "localhost" or host == "::1" or _is_ipv4_loopback(host)


def is_loopback_name(host_header: str) -> bool:
    """Whether a Host header can mean nothing but this machine, whatever a DNS server says."""
    found = _HOST.fullmatch(host_header)
    if not found:
        return False
    name = found["name"].lower()
    return name == "[::1]" or bool(_LOCALHOST.fullmatch(name)) or _is_ipv4_loopback(name)


def _is_ipv4_loopback(text: str) -> bool:
    try:
        return ipaddress.IPv4Address(text).is_loopback
    except ValueError:
        return False
