"""Names under which a host can be looked up."""

from typing import Final
from urllib.parse import urlsplit

ADVICE: Final = "no host is named so: between two dots stand 1 to 63 characters, and in all of it at most 253"
_LONGEST: Final = 253


def is_host_name(name: str) -> bool:
    """Whether a name, or an address, is valid in DNS (RFC 1035, 2.3.4).

    The name is encoded with IDNA, as sockets do: for an invalid one they raise an error that is no OSError.
    """
    try:
        return 0 < len(name.encode("idna").removesuffix(b".")) <= _LONGEST
    except UnicodeError:
        return False


def host_of(url: str) -> str:
    """The host in an http or https URL; empty where there is none, or where the port is invalid."""
    try:
        parts = urlsplit(url)
        named = parts.scheme in {"http", "https"} and parts.port != 0
    except ValueError:
        return ""
    return parts.hostname or "" if named else ""
