"""What stands between a session's bytes and the store that keeps them."""

from collections.abc import Sequence
from importlib.metadata import EntryPoint
from typing import Any, Final, Protocol

from proxy.memory.errors import Unreadable
from proxy.memory.stores.store import Key

# No msgpack value begins with C1, so that nothing which was written plainly is taken for marked.
ENCRYPTED: Final = b"\xc1TK1"
"""How a blob begins that Encryption made."""
_PLAIN: Final = b"\xc1TK0"
_ENCRYPTION: Final = EntryPoint(
    "encryption", "proxy.memory.stores.encryption:Encryption", "turnkeeper.codecs"
)
_ADVICE: Final = "make one with: openssl rand -base64 32 | tr +/ -_"


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


def codec_from_keys(keys: Sequence[str]) -> Codec:
    """Encryption by these keys in base64, newest first; none where all are empty.

    Raises ValueError, which says how to make a key and never repeats what was given.
    """
    given = [key for key in keys if key.strip()]
    if not given:
        return Plain()
    encryption = _load_encryption()
    try:
        codec: Codec = encryption.parse(",".join(given))
    except ValueError as error:
        raise ValueError(f"{error}; {_ADVICE}") from None
    return codec


def _load_encryption() -> Any:
    try:
        return _ENCRYPTION.load()
    except ModuleNotFoundError as error:
        raise ValueError(
            f"encryption needs the module {error.name}; install turnkeeper[encryption]"
        ) from None
