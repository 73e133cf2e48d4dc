"""Where an upstream is."""

import re
from urllib.parse import urlsplit

PRACTICE = "practice:"
_CALL = "/chat/completions"


def base_url(written: str) -> str:
    """The address without a slash at its end. Raises ValueError, which never shows the address itself."""
    if written == PRACTICE:
        return written
    if re.search(r"[^!-~]", written):
        raise ValueError("an address has no spaces, and no characters beyond ASCII")
    _check(written)
    return written.rstrip("/")


def _check(written: str) -> None:
    scheme, rest = written.partition("://")[::2]
    if scheme.lower() not in {"http", "https"} or not _has_host(written):
        raise ValueError(
            "write an address such as https://api.example.com/v1, or practice: for the practice model"
        )
    if "@" in rest.partition("/")[0]:
        raise ValueError("an address has no user or password before its host; use api_key or headers")
    if "?" in rest or "#" in rest:
        raise ValueError("cut the address before its '?' or '#'")
    if rest.rstrip("/").endswith(_CALL):
        raise ValueError(f"cut {_CALL} from the end; it is added for every call")


def _has_host(written: str) -> bool:
    try:
        parts = urlsplit(written)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
