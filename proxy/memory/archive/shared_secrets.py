"""Keys that are made once, stand in the archive itself, and are shared by all its processes."""

import contextlib
import secrets
from typing import Final

from proxy.memory.archive.sql import Rows, Steps, fetch
from proxy.memory.archive.statements import INSERT_SECRET, SECRETS, UPDATE_SECRET
from proxy.memory.errors import Unreadable
from proxy.memory.stores.codec import Codec
from proxy.memory.stores.store import Key

_NO_SESSION: Final = Key("", "")
_BYTES: Final = 32


def ensure_secrets(codec: Codec, purpose: str) -> Steps[tuple[bytes, ...]]:
    """The secrets for a purpose that can be read, never none; each is encoded by the newest key from then on.

    It is what a transaction begins with: two that make the secret wait for one another.
    """
    rows = yield from stored_secrets(purpose)
    while not (readable := _readable(codec, rows)):
        # Where another process has made one since these were read, nothing is inserted.
        blob = codec.encode(_NO_SESSION, secrets.token_bytes(_BYTES))
        yield from fetch(INSERT_SECRET, {"purpose": purpose, "number": len(rows), "blob": blob})
        rows = yield from stored_secrets(purpose)
    for number, secret, blob in readable:
        if not codec.is_current(blob):
            again = codec.encode(_NO_SESSION, secret)
            yield from fetch(UPDATE_SECRET, {"purpose": purpose, "number": number, "blob": again})
    return tuple(secret for _, secret, _ in readable)


def stored_secrets(purpose: str) -> Steps[Rows]:
    """The secrets for a purpose in their encoded form, each behind its number."""
    return (yield from fetch(SECRETS, {"purpose": purpose}))


def readable_secrets(codec: Codec, rows: Rows) -> tuple[bytes, ...]:
    """Those of stored secrets that can be read."""
    return tuple(secret for _, secret, _ in _readable(codec, rows))


def _readable(codec: Codec, rows: Rows) -> list[tuple[int, bytes, bytes]]:
    readable = []
    for number, blob in rows:
        with contextlib.suppress(Unreadable):  # under an encryption key that is lost
            readable.append((number, codec.decode(_NO_SESSION, bytes(blob)), bytes(blob)))
    return readable
