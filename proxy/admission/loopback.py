"""What reaches this machine alone."""

import re

_NUMBER = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = re.compile(rf"127(?:\.{_NUMBER}){{3}}")
# The dot at the end says that the name is whole (RFC 1034, 3.1).
_NAME = re.compile(
    rf"(?:\[::1\]|(?:[a-z0-9_-]+\.)*localhost\.?|{_IPV4.pattern})(?::[0-9]{{1,5}})?", re.ASCII | re.IGNORECASE
)


def is_loopback_address(host: str) -> bool:
    """Whether listening on this host, an address or ``localhost``, admits callers of this machine only."""
    return host.lower() == "localhost" or host == "::1" or _IPV4.fullmatch(host) is not None


def is_loopback_name(host_header: str) -> bool:
    """Whether a Host header can mean nothing but this machine, whatever a DNS server says."""
    return _NAME.fullmatch(host_header) is not None
