"""Encryption of sessions at rest, by keys that can be replaced while sessions are in use."""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV

from proxy.memory.errors import Unreadable
from proxy.memory.stores.codec import ENCRYPTED, NAME_MARK, Plain
from proxy.memory.stores.store import Key
from proxy.newest import Newest

KEY_BYTES: Final = 32
_NAME: Final = 4
_NONCE: Final = 12
_HEAD: Final = len(ENCRYPTED) + _NAME
_TAG: Final = 4
_LIKE_ENCRYPTED: Final = re.compile(f"{re.escape(NAME_MARK)}[A-Za-z0-9_-]{{26,}}")
_MOST_NAMES: Final = 4096


class Encryption:
    """AES-256-GCM (NIST SP 800-38D). The first key encrypts, and all decrypt; plain bytes are read as well.

    Each session has its own key, derived from the configured one, so that random nonces never wear it out.
    The tenant and the session are authenticated, so that a blob cannot be decoded as another session's.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys or any(len(key) != KEY_BYTES for key in keys):
            raise ValueError(f"write at least one encryption key, each of {KEY_BYTES} bytes")
        self._keys = {_name(key): key for key in reversed(keys)}
        self._newest = _name(keys[0])
        self._plain = Plain()

    @classmethod
    def parse(cls, text: str) -> "Encryption":
        """Parses keys in base64, newest first, between commas. Raises ValueError, never with a key in it."""
        try:
            keys = [base64.b64decode(part.strip(), b"-_", validate=True) for part in text.split(",")]
        except (binascii.Error, ValueError):
            raise ValueError(
                f"write each key as {KEY_BYTES} bytes in URL-safe base64, separated by commas"
            ) from None
        return cls(keys)

    def encode(self, key: Key, blob: bytes) -> bytes:
        """Returns the mark, the key's name, a nonce, and the encrypted bytes: 36 bytes more than ``blob``."""
        nonce = secrets.token_bytes(_NONCE)
        session = _session_bytes(key)
        encrypted = _cipher(self._keys[self._newest], session).encrypt(nonce, blob, session)
        return ENCRYPTED + self._newest + nonce + encrypted

    def decode(self, key: Key, blob: bytes) -> bytes:
        """Returns the bytes that were encrypted for this key, or stored plain. Raises Unreadable."""
        if blob[: len(ENCRYPTED)] != ENCRYPTED:
            return self._plain.decode(key, blob)
        used = self._keys.get(blob[len(ENCRYPTED) : _HEAD])
        if used is None:
            raise Unreadable("This session was encrypted with a key that is not configured here.")
        session = _session_bytes(key)
        try:
            return _cipher(used, session).decrypt(
                blob[_HEAD : _HEAD + _NONCE], blob[_HEAD + _NONCE :], session
            )
        except (InvalidTag, ValueError):
            raise Unreadable("This session's bytes were altered, or belong to another session.") from None

    def is_current(self, blob: bytes) -> bool:
        """Whether the newest key has encrypted the bytes."""
        return blob[:_HEAD] == ENCRYPTED + self._newest

    def derived(self, purpose: bytes) -> tuple[bytes, ...]:
        """Returns a key derived from each key, the newest's first."""
        newest_first = sorted(self._keys, key=lambda name: name != self._newest)
        return tuple(
            hmac.digest(self._keys[name], b"turnkeeper " + purpose, hashlib.sha256) for name in newest_first
        )

    def names(self, secrets: Sequence[bytes] = ()) -> "NameEncryption":
        """Returns the encryption of names, by keys derived from ``secrets``, else from the codec's keys."""
        halves = [
            tuple(hmac.digest(secret, purpose, hashlib.sha256) for secret in secrets) or self.derived(purpose)
            for purpose in (b"names: authentication", b"names: encryption")
        ]
        return NameEncryption([b"".join(key) for key in zip(*halves, strict=True)])


class NameEncryption:
    """AES-256-SIV (RFC 5297): equal names become equal texts, which nobody can make without the key.

    The first key encrypts, and all decrypt. A text shows the length of its name, and whether two names are
    equal. The tenant is encrypted with the name, so that names of two tenants cannot be compared. A text that
    an unknown key has encrypted is itself a name, by which its session can be listed and deleted.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._ciphers = {_tag(key): AESSIV(key) for key in keys}
        self._forms = Newest[tuple[str, str], tuple[str, ...]](_MOST_NAMES)

    def encrypted(self, tenant: str, name: str) -> str:
        """Returns the mark, the key's tag, and the encrypted name; an empty name stays empty."""
        return self.forms(tenant, name)[0]

    def forms(self, tenant: str, name: str) -> tuple[str, ...]:
        """Returns the name under each key, newest first, then the name itself; caches the newest results."""
        forms = self._forms.get((tenant, name))
        if forms is not None:
            return forms
        tag = name[len(NAME_MARK) :][:_TAG]
        if not name or (tag not in self._ciphers and _LIKE_ENCRYPTED.fullmatch(name)):
            forms = (name,)
        else:
            both = f"{len(tenant)}:{tenant}{name}".encode("utf-8", "surrogatepass")
            encrypted = (
                NAME_MARK + tag + base64.urlsafe_b64encode(cipher.encrypt(both, None)).decode().rstrip("=")
                for tag, cipher in self._ciphers.items()
            )
            forms = (*encrypted, name)
        self._forms.put((tenant, name), forms)
        return forms

    def decrypted(self, stored: str) -> str:
        """Returns the name, which is the text itself if it only looks encrypted."""
        cipher = self._ciphers.get(stored[len(NAME_MARK) : len(NAME_MARK) + _TAG])
        if cipher is None or stored[: len(NAME_MARK)] != NAME_MARK:
            return stored
        text = stored[len(NAME_MARK) + _TAG :]
        try:
            encrypted = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
            length, _, both = cipher.decrypt(encrypted, None).decode("utf-8", "surrogatepass").partition(":")
        except (binascii.Error, InvalidTag, ValueError):
            return stored
        return both[int(length) :]

    @property
    def mark(self) -> str:
        """The prefix of names that the newest key has encrypted."""
        return NAME_MARK + next(iter(self._ciphers))


def _tag(key: bytes) -> str:
    return base64.urlsafe_b64encode(hmac.digest(key, b"turnkeeper name tag", hashlib.sha256))[:_TAG].decode()


def _name(key: bytes) -> bytes:
    return hmac.digest(key, b"turnkeeper key name", hashlib.sha256)[:_NAME]


def _session_bytes(key: Key) -> bytes:
    """Returns unique bytes for the session, which begin with the tenant's length."""
    tenant = key.tenant.encode("utf-8", "surrogatepass")
    return len(tenant).to_bytes(8, "big") + tenant + key.session.encode("utf-8", "surrogatepass")


def _cipher(key: bytes, session: bytes) -> AESGCM:
    return AESGCM(hmac.digest(key, b"turnkeeper session\0" + session, hashlib.sha256))
