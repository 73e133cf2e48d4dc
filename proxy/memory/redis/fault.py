"""What went wrong between us and a Redis, in words that hold nothing of what was asked."""

import re

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    ResponseError,
    SlotNotCoveredError,
)

_CODES: dict[type[Exception], str] = {
    AuthenticationError: "NOAUTH",
    BusyLoadingError: "LOADING",
    ClusterDownError: "CLUSTERDOWN",
    MovedError: "MOVED",
    NoPermissionError: "NOPERM",
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
}
"""What the client's library has taken off the message."""

_SAID = {
    "NOAUTH": "refuses the user or the password",
    "LOADING": "is still loading its data",
    "CLUSTERDOWN": "has lost a part of its Cluster",
    "MOVED": "is part of a Cluster, whose address begins with redis+cluster://",
    "NOPERM": "does not permit its user a command or a key that is needed",
    "OOM": "is full",
    "READONLY": "is read-only",
}
_IN_A_SCRIPT = re.compile(r"@user_script: ?\d+: -([A-Z]{2,16})\b")
"""How servers before Redis 7 tell of an error that a script's command met."""

_NOT_PERMITTED = "The user executing the script can't"


def said(fault: Exception) -> str:
    """One sentence about a fault."""
    if not (code := _code(fault)):
        return "Redis cannot be reached"
    return f"Redis {_SAID.get(code, f'answered {code}')}"


def is_lost(fault: Exception) -> bool:
    """Whether connections that were made before this fault should not be asked again.

    A server that has become read-only is no longer the one that the address means.
    """
    return not isinstance(fault, ResponseError) or _code(fault) == "READONLY"


def is_nowhere(fault: Exception) -> bool:
    """Whether no node that a Cluster's client knows of is left; of single nodes it keeps account itself."""
    return isinstance(fault, RedisClusterException) and not isinstance(fault, SlotNotCoveredError)


def _code(fault: Exception) -> str:
    """The first word of what the server answered; nothing where it did not answer."""
    for kind, code in _CODES.items():
        if isinstance(fault, kind):
            return code
    if not isinstance(fault, ResponseError):
        return ""
    if _NOT_PERMITTED in str(fault):
        return "NOPERM"
    found = _IN_A_SCRIPT.search(str(fault)) or re.match(r"([A-Z]{2,16})\b", str(fault))
    return found[1] if found else "an error"
