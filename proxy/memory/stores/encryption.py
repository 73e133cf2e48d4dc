"""Sessions encrypted at rest, by keys that can be changed while sessions live."""

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

KEY_BYTES: Final = 32
_NAME: Final = 4
_NONCE: Final = 12
_HEAD: Final = len(ENCRYPTED) + _NAME
_TAG: Final = 4
_LIKE_ENCRYPTED: Final = re.compile(f"{re.escape(NAME_MARK)}[A-Za-z0-9_-]{{26,}}")
_MOST_NAMES: Final = 4096


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
        encrypted = _cipher(self._keys[self._newest], session).encrypt(nonce, blob, session)
        return ENCRYPTED + self._newest + nonce + encrypted

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

    def names(self, secrets: Sequence[bytes] = ()) -> "NameEncryption":
        """What names are encrypted with: by keys that are made of ``secrets``, else by derived ones."""
        halves = [
            tuple(hmac.digest(secret, purpose, hashlib.sha256) for secret in secrets) or self.derived(purpose)
            for purpose in (b"names: authentication", b"names: encryption")
        ]
        return NameEncryption([b"".join(key) for key in zip(*halves, strict=True)])


class NameEncryption:
    """AES-256-SIV (RFC 5297): the same name always becomes the same text, which takes the key to make.

    The first key encrypts, all decrypt. A text shows how long a name is, and whether two are the same; the
    tenant is encrypted with it, so that tenants' names are not compared. What another key has encrypted is a
    name itself, by which it can be listed and deleted.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._ciphers = {_tag(key): AESSIV(key) for key in keys}
        self._forms: dict[tuple[str, str], tuple[str, ...]] = {}

    def encrypted(self, tenant: str, name: str) -> str:
        """The mark, the key's tag, and the name encrypted."""
        return self.forms(tenant, name)[0]

    def forms(self, tenant: str, name: str) -> tuple[str, ...]:
        """The name under each key, and as it is; those that were asked for last are at hand."""
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
        self._forms[tenant, name] = forms
        if len(self._forms) > _MOST_NAMES:
            del self._forms[next(iter(self._forms))]
        return forms

    def decrypted(self, stored: str) -> str:
        """The name; a text that only looks encrypted is one."""
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
        """How names begin that the newest key encrypts."""
        return NAME_MARK + next(iter(self._ciphers))


def _tag(key: bytes) -> str:
    return base64.urlsafe_b64encode(hmac.digest(key, b"turnkeeper name tag", hashlib.sha256))[:_TAG].decode()


def _name(key: bytes) -> bytes:
    return hmac.digest(key, b"turnkeeper key name", hashlib.sha256)[:_NAME]


def _session_bytes(key: Key) -> bytes:
    """The session as bytes, no two alike: the tenant's length stands in front."""
    tenant = key.tenant.encode("utf-8", "surrogatepass")
    return len(tenant).to_bytes(8, "big") + tenant + key.session.encode("utf-8", "surrogatepass")


def _cipher(key: bytes, session: bytes) -> AESGCM:
    return AESGCM(hmac.digest(key, b"turnkeeper session\0" + session, hashlib.sha256))
