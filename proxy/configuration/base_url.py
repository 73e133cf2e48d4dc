"""Where an upstream is."""

import re
from typing import Final

from proxy.hostname import ADVICE, host_of, is_host_name
from proxy.http1.origin import Origin

PRACTICE = "practice:"
_CALL = "/chat/completions"
_HOW: Final = "write an address such as https://api.example.com/v1, or practice: for the practice model"


def base_url(written: str) -> str:
    """The address without a slash at its end. Raises ValueError, which never shows the address itself."""
    if written == PRACTICE:
        return written
    if re.search(r"[^!-~]", written):
        raise ValueError("an address has no spaces, and no characters beyond ASCII")
    _check(written)
    return written.rstrip("/")


def _check(written: str) -> None:
    rest = written.partition("://")[2]
    host = host_of(written)
    if not host:
        raise ValueError(_HOW)
    if not is_host_name(host):
        raise ValueError(ADVICE)
    if "@" in rest.partition("/")[0]:
        raise ValueError("an address has no user or password before its host; use api_key or headers")
    if "?" in rest or "#" in rest:
        raise ValueError("cut the address before its '?' or '#'")
    if rest.rstrip("/").endswith(_CALL):
        raise ValueError(f"cut {_CALL} from the end; it is added for every call")
    _try(written)


def _try(written: str) -> None:
    """What is let through here, whoever calls must be able to take."""
    try:
        Origin.of(written)
    except ValueError:
        raise ValueError(_HOW) from None
