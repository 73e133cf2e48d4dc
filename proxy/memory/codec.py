"""What stands between a session's bytes and the store that keeps them."""

from typing import Final, Protocol

from proxy.memory.faults import Unreadable
from proxy.memory.store import Key

# No msgpack value begins with C1, so that nothing which was written plainly is taken for marked.
ENCRYPTED: Final = b"\xc1TK1"
"""How a blob begins that Encryption made."""
_PLAIN: Final = b"\xc1TK0"
_MARK: Final = len(_PLAIN)


class Codec(Protocol):
    """Bytes of one session, there and back. Encoded bytes are of no use under any other key."""

    def encode(self, key: Key, blob: bytes) -> bytes:
        """The bytes that a store is to keep."""
        ...

    def decode(self, key: Key, blob: bytes) -> bytes:
        """The bytes that were encoded for this key; raises Unreadable for what cannot be decoded."""
        ...

    def derived(self, purpose: bytes) -> tuple[bytes, ...]:
        """Keys for another purpose, newest first; none where nothing is encrypted."""
        ...


class Plain:
    """Bytes are kept as they are; those that look marked are marked as plain."""

    def encode(self, key: Key, blob: bytes) -> bytes:  # noqa: ARG002 - any key
        """The same bytes."""
        return _PLAIN + blob if blob[:3] == _PLAIN[:3] else blob

    def decode(self, key: Key, blob: bytes) -> bytes:  # noqa: ARG002 - any key
        """The same bytes; Unreadable where they are encrypted."""
        mark = blob[:_MARK]
        if mark == ENCRYPTED:
            raise Unreadable("This session is encrypted, and no key was given to read it with.")
        return blob[_MARK:] if mark == _PLAIN else blob

    def derived(self, purpose: bytes) -> tuple[bytes, ...]:  # noqa: ARG002 - for any purpose
        """None."""
        return ()
