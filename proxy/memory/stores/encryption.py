"""Sessions encrypted at rest, by keys that can be changed while sessions live."""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from proxy.memory.errors import Unreadable
from proxy.memory.stores.codec import ENCRYPTED, Plain
from proxy.memory.stores.store import Key

KEY_BYTES: Final = 32
_NAME: Final = 4
_NONCE: Final = 12
_HEAD: Final = len(ENCRYPTED) + _NAME


class Encryption:
    """AES-256-GCM (NIST SP 800-38D). The first key encrypts, all decrypt; what is stored plain is read.

    Each session has a key of its own, derived from the given one, so that random nonces never wear a key out;
    and the tenant and the session are authenticated, so that a blob is of no use in another's place.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys or any(len(key) != KEY_BYTES for key in keys):
            raise ValueError(f"an encryption key has {KEY_BYTES} bytes, and there is at least one")
        self._keys = {_name(key): key for key in reversed(keys)}
        self._newest = _name(keys[0])
        self._plain = Plain()

    @classmethod
    def parse(cls, text: str) -> "Encryption":
        """Keys in base64, newest first, by commas. Raises ValueError, which never repeats them."""
        try:
            keys = [base64.b64decode(part.strip(), b"-_", validate=True) for part in text.split(",")]
        except (binascii.Error, ValueError):
            raise ValueError(f"write each key as {KEY_BYTES} bytes in URL-safe base64, by commas") from None
        return cls(keys)

    def encode(self, key: Key, blob: bytes) -> bytes:
        """The mark, the key's name, a nonce, and the bytes encrypted: 36 bytes more."""
        nonce = secrets.token_bytes(_NONCE)
        session = _session_bytes(key)
        sealed = _cipher(self._keys[self._newest], session).encrypt(nonce, blob, session)
        return ENCRYPTED + self._newest + nonce + sealed

    def decode(self, key: Key, blob: bytes) -> bytes:
        """The bytes that were encrypted for this key, or stored plain."""
        if blob[: len(ENCRYPTED)] != ENCRYPTED:
            return self._plain.decode(key, blob)
        used = self._keys.get(blob[len(ENCRYPTED) : _HEAD])
        if used is None:
            raise Unreadable("This session was encrypted with a key that is not among those given.")
        session = _session_bytes(key)
        try:
            return _cipher(used, session).decrypt(
                blob[_HEAD : _HEAD + _NONCE], blob[_HEAD + _NONCE :], session
            )
        except (InvalidTag, ValueError):
            raise Unreadable("This session's bytes were altered, or belong to another session.") from None

    def is_current(self, blob: bytes) -> bool:
        """Whether the newest key has encrypted them."""
        return blob[:_HEAD] == ENCRYPTED + self._newest

    def derived(self, purpose: bytes) -> tuple[bytes, ...]:
        """A key derived from each, the newest's first."""
        newest_first = sorted(self._keys, key=lambda name: name != self._newest)
        return tuple(
            hmac.digest(self._keys[name], b"turnkeeper " + purpose, hashlib.sha256) for name in newest_first
        )


def _name(key: bytes) -> bytes:
    return hmac.digest(key, b"turnkeeper key name", hashlib.sha256)[:_NAME]


def _session_bytes(key: Key) -> bytes:
    """The session as bytes, no two alike: the tenant's length stands in front."""
    tenant = key.tenant.encode("utf-8", "surrogatepass")
    return len(tenant).to_bytes(8, "big") + tenant + key.session.encode("utf-8", "surrogatepass")


def _cipher(key: bytes, session: bytes) -> AESGCM:
    return AESGCM(hmac.digest(key, b"turnkeeper session\0" + session, hashlib.sha256))
