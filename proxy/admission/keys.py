"""API keys and the secret of a webhook."""

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Final, Literal, Self

import msgspec

Scope = Literal["all", "chat"]
_SCOPES: Final[Mapping[str, Scope]] = {"": "all", "chat": "chat"}
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SECRET: Final = re.compile(r"[!-~]+")
_SHORT: Final = 16
_FORMAT: Final = "name:secret or name:secret:chat"


class ApiKey(msgspec.Struct, frozen=True):
    """A tenant, and what its key admits to: chat completions alone, or all. It holds no secret.

    ``is_short`` is whether the secret has fewer than 16 characters.
    """

    tenant: str
    digest: bytes
    scope: Scope = "all"
    is_short: bool = False

    def __repr__(self) -> str:
        return f"ApiKey({self.tenant!r}, scope={self.scope!r})"


class Keys(msgspec.Struct, frozen=True):
    """All API keys; without any, none is needed."""

    entries: tuple[ApiKey, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.entries)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses comma-separated keys in the form ``name:secret`` or ``name:secret:chat``.

        Raises ValueError, which names the number of the wrong entry and shows nothing of it.
        """
        if not text.strip():
            return cls()
        entries = [entry for entry in map(str.strip, text.split(",")) if entry]
        if not entries:  # commas alone are no wish to need no keys
            raise ValueError(f"there are commas, and no key; write {_FORMAT}, or nothing")
        keys = tuple(_parse_key(number, entry) for number, entry in enumerate(entries, 1))
        first: dict[bytes, int] = {}
        for number, key in enumerate(keys, 1):
            if first.setdefault(key.digest, number) != number:
                raise ValueError(f"keys {first[key.digest]} and {number}: two entries cannot have one secret")
        return cls(keys)

    def find(self, secret: str) -> ApiKey | None:
        """Finds the key of a secret, in a time that does not depend on which entry it is, or how near."""
        digest = _digest(secret)
        match = None
        for key in self.entries:
            if hmac.compare_digest(key.digest, digest):
                match = key
        return match

    def match(self, headers: Mapping[str, str]) -> ApiKey | None:
        """Finds the key of a request: ``Authorization: Bearer <secret>``, or ``api-key: <secret>``."""
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        return self.find(secret.strip() if scheme.lower() == "bearer" else headers.get("api-key", ""))


class Webhook(msgspec.Struct, frozen=True):
    """The secret of a webhook, which is never shown, and the tenant of its events."""

    secret: bytes
    tenant: str

    def __repr__(self) -> str:
        return f"Webhook(tenant={self.tenant!r})"

    def verify(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Whether Agora's signature fits the raw body; of two signatures, the newer one counts.

        They are HMAC-SHA256 and HMAC-SHA1 in hexadecimal digits (Agora, "Receive notifications").
        """
        newer, older = headers.get("agora-signature-v2"), headers.get("agora-signature")
        signature, digest = (newer, hashlib.sha256) if newer is not None else (older or "", hashlib.sha1)
        expected = hmac.digest(self.secret, body, digest).hex()
        return hmac.compare_digest(expected.encode(), signature.strip().lower().encode())


def _parse_key(number: int, entry: str) -> ApiKey:
    name, _, rest = entry.partition(":")
    secret, _, scope = rest.partition(":")
    if not _NAME.fullmatch(name) or not secret:
        allowed = "the name of 1 to 64 letters, digits, '.', '_' or '-'"
        raise ValueError(f"key {number}: write {_FORMAT}, {allowed}")
    if not _SECRET.fullmatch(secret):
        raise ValueError(f"key {number}: a secret has no spaces, and no characters beyond ASCII")
    if scope not in _SCOPES:
        raise ValueError(f"key {number}: after a second ':' write 'chat'; a secret has no ':' and no ','")
    return ApiKey(name, _digest(secret), _SCOPES[scope], len(secret) < _SHORT)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
