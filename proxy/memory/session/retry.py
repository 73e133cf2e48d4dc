"""What a request says of itself beside its words: which one it is, and whether it is sent once more."""

import math
from hashlib import blake2b
from typing import Final, NamedTuple

_BYTES = 6


class Attempt(NamedTuple):
    """What tells a retry from a new turn, where the words do not.

    ``request`` stands for the name that the client gave the request, and is empty where it gave none.
    ``again`` is whether the client says that it sends the request once more; ``None`` where it says nothing.
    """

    request: bytes = b""
    again: bool | None = None


class Asking(NamedTuple):
    """An attempt, and when it arrived, in seconds since 1970: later than anything, where that is left out."""

    attempt: Attempt = Attempt()
    at: float = math.inf


UNTOLD: Final = Attempt()
"""A request that says nothing of itself."""
NOW: Final = Asking()
"""One that arrives now."""


def attempt(name: str | None, *, again: bool | None) -> Attempt:
    """An attempt at the request that a client calls ``name``: a few bytes stand for it."""
    if name is None:
        return Attempt(b"", again)
    return Attempt(blake2b(name.encode("utf-8", "replace"), digest_size=_BYTES).digest(), again)
