"""What went wrong between us and a Redis, in words that hold nothing of what was asked."""

import re

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MaxConnectionsError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)

_SAID: tuple[tuple[type[Exception], str], ...] = (
    (AuthenticationError, "refuses the user or the password"),
    (NoPermissionError, "does not permit its user a command or a key that is needed"),
    (BusyLoadingError, "is still loading its data"),
    (ReadOnlyError, "is read-only"),
    (OutOfMemoryError, "is full"),
    (ClusterDownError, "has lost a part of its Cluster"),
    (MovedError, "is part of a Cluster, whose address begins with redis+cluster://"),
    (MaxConnectionsError, "has no connection to spare"),
)


def said(fault: Exception) -> str:
    """One sentence about a fault."""
    for kind, words in _SAID:
        if isinstance(fault, kind):
            return f"Redis {words}"
    if isinstance(fault, ResponseError):
        code = re.match(r"[A-Z]{2,16}\b", str(fault))
        return f"Redis answered {code[0] if code else 'with an error'}"
    return "Redis cannot be reached"


def is_lost(fault: Exception) -> bool:
    """Whether connections that were made before this fault should not be asked again.

    A server that has become read-only is no longer the one that the address means.
    """
    return isinstance(fault, ReadOnlyError) or not isinstance(fault, ResponseError)
