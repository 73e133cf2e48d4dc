"""Codecs, which encode a session's bytes for a store and decode them."""

from collections.abc import Sequence
from importlib.metadata import EntryPoint
from typing import Any, Final, Protocol

from proxy.memory.errors import Unreadable
from proxy.memory.stores.store import Key

# No msgpack value begins with C1, so plain bytes are never mistaken for marked ones.
ENCRYPTED: Final = b"\xc1TK1"
"""The prefix of encrypted bytes."""
NAME_MARK: Final = ".~"
"""The prefix of encrypted names; it sorts before letters and digits, and hardly any other name has it."""

_PLAIN: Final = b"\xc1TK0"
_MARK: Final = len(_PLAIN)
_ENCRYPTION: Final = EntryPoint(
    "encryption", "proxy.memory.stores.encryption:Encryption", "turnkeeper.codecs"
)


class Names(Protocol):
    """Encrypts names of sessions and users deterministically, so that they can be looked up and listed."""

    def encrypted(self, tenant: str, name: str) -> str:
        """Returns a tenant's name as it is stored, by the newest key; an empty name stays empty."""
        ...

    def forms(self, tenant: str, name: str) -> tuple[str, ...]:
        """Returns all texts that may be stored for a name: the newest key's first, the name itself last."""
        ...

    def decrypted(self, stored: str) -> str:
        """Returns the name for a stored text, which is the text itself if no key has encrypted it."""
        ...

    @property
    def mark(self) -> str:
        """The prefix of names that the newest key has encrypted."""
        ...


class Codec(Protocol):
    """Encodes and decodes the bytes of sessions; encrypted bytes can be decoded only for the same session."""

    def encode(self, key: Key, blob: bytes) -> bytes:
        """Returns the bytes for the store."""
        ...

    def decode(self, key: Key, blob: bytes) -> bytes:
        """Returns the bytes that were encoded for this key. Raises Unreadable if they cannot be decoded."""
        ...

    def is_current(self, blob: bytes) -> bool:
        """Whether decodable bytes are encoded as they would be now, by the newest key."""
        ...

    def derived(self, purpose: bytes) -> tuple[bytes, ...]:
        """Returns keys derived for another purpose, newest first; none without encryption."""
        ...

    def names(self, secrets: Sequence[bytes] = ()) -> Names | None:
        """Returns the encryption of names, by ``secrets`` or the codec's keys; ``None`` without any."""
        ...


class Plain:
    """Stores bytes unchanged, except that bytes that look marked are marked as plain."""

    def encode(self, key: Key, blob: bytes) -> bytes:  # noqa: ARG002 - any key
        """Returns the bytes, marked as plain if they look marked."""
        return _PLAIN + blob if blob[:3] == _PLAIN[:3] else blob

    def decode(self, key: Key, blob: bytes) -> bytes:  # noqa: ARG002 - any key
        """Returns the bytes without that mark. Raises Unreadable for encrypted bytes."""
        mark = blob[:_MARK]
        if mark == ENCRYPTED:
            raise Unreadable("This session is encrypted, but no encryption key is configured.")
        return blob[_MARK:] if mark == _PLAIN else blob

    def is_current(self, blob: bytes) -> bool:
        """Whether the bytes are not encrypted."""
        return blob[:_MARK] != ENCRYPTED

    def derived(self, purpose: bytes) -> tuple[bytes, ...]:  # noqa: ARG002 - for any purpose
        """Returns no keys, because nothing is encrypted."""
        return ()

    def names(self, secrets: Sequence[bytes] = ()) -> None:
        """Returns ``None``, because names are not encrypted."""


def codec_from_keys(keys: Sequence[str]) -> Codec:
    """Returns encryption by keys in base64, newest first, or ``Plain`` if all are empty.

    Raises ValueError, which says how to make a key or what to install, and never contains a key.
    """
    keys = [key for key in keys if key.strip()]
    if not keys:
        return Plain()
    # cryptography is imported only if there is a key.
    try:
        encryption: Any = _ENCRYPTION.load()
    except ModuleNotFoundError as error:
        raise ValueError(
            f"encryption needs the module {error.name}; install turnkeeper[encryption]"
        ) from None
    try:
        codec: Codec = encryption.parse(",".join(keys))
    except ValueError as error:
        raise ValueError(f"{error}; make one with: openssl rand -base64 32 | tr +/ -_") from None
    return codec
