"""What a session's bytes pass through on their way to a store and back."""

from collections.abc import Sequence
from importlib.metadata import EntryPoint
from typing import Any, Final, Protocol

from proxy.memory.errors import Unreadable
from proxy.memory.stores.store import Key

# No msgpack value begins with C1, so that plain bytes are never taken for marked ones.
ENCRYPTED: Final = b"\xc1TK1"
"""How bytes begin that Encryption made."""
NAME_MARK: Final = ".~"
"""How names begin that were encrypted: before letters and digits, and as hardly any other name."""

_PLAIN: Final = b"\xc1TK0"
_MARK: Final = len(_PLAIN)
_ENCRYPTION: Final = EntryPoint(
    "encryption", "proxy.memory.stores.encryption:Encryption", "turnkeeper.codecs"
)


class Names(Protocol):
    """Encrypts the names of sessions and users, one to one: what is stored can be looked up and listed."""

    def encrypted(self, tenant: str, name: str) -> str:
        """A tenant's name as it is stored, by the newest key; an empty one stays."""
        ...

    def forms(self, tenant: str, name: str) -> tuple[str, ...]:
        """All that may be stored for a name, the newest key's first, and the name itself last."""
        ...

    def decrypted(self, stored: str) -> str:
        """The name that is stored; as it is where no key has encrypted it."""
        ...

    @property
    def mark(self) -> str:
        """How names begin that the newest key has encrypted."""
        ...


class Codec(Protocol):
    """Encodes the bytes of one session, which are of no use under any other key, and decodes them."""

    def encode(self, key: Key, blob: bytes) -> bytes:
        """The bytes for the store."""
        ...

    def decode(self, key: Key, blob: bytes) -> bytes:
        """The bytes that were encoded for this key; raises Unreadable for what cannot be decoded."""
        ...

    def is_current(self, blob: bytes) -> bool:
        """Whether bytes that can be decoded are encoded as they would be now: under the newest key."""
        ...

    def derived(self, purpose: bytes) -> tuple[bytes, ...]:
        """Keys derived for another purpose, newest first; none without encryption."""
        ...

    def names(self, secrets: Sequence[bytes] = ()) -> Names | None:
        """What names are encrypted with, by ``secrets`` or by the given keys; none without encryption."""
        ...


class Plain:
    """Stores bytes as they are; those that look marked are marked as plain."""

    def encode(self, key: Key, blob: bytes) -> bytes:  # noqa: ARG002 - any key
        """The same bytes."""
        return _PLAIN + blob if blob[:3] == _PLAIN[:3] else blob

    def decode(self, key: Key, blob: bytes) -> bytes:  # noqa: ARG002 - any key
        """The same bytes; Unreadable where they are encrypted."""
        mark = blob[:_MARK]
        if mark == ENCRYPTED:
            raise Unreadable("This session is encrypted, and no key was given to read it with.")
        return blob[_MARK:] if mark == _PLAIN else blob

    def is_current(self, blob: bytes) -> bool:
        """Whether they are not encrypted."""
        return blob[:_MARK] != ENCRYPTED

    def derived(self, purpose: bytes) -> tuple[bytes, ...]:  # noqa: ARG002 - for any purpose
        """No keys: nothing is encrypted."""
        return ()

    def names(self, secrets: Sequence[bytes] = ()) -> None:
        """None: names stand as they are."""


def codec_from_keys(keys: Sequence[str]) -> Codec:
    """Encryption by keys in base64, newest first; none where all are empty.

    Raises ValueError, which says how to make a key and never repeats one.
    """
    keys = [key for key in keys if key.strip()]
    if not keys:
        return Plain()
    # The cryptography is loaded when there is a key.
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
