"""Who may call, and as which tenant."""

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Literal, Self

import msgspec

Scope = Literal["all", "chat"]
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SECRET = re.compile(r"[!-~]+")
_EXPECTED = "name:secret or name:secret:chat"


_SCOPES: dict[str, Scope] = {"": "all", "all": "all", "chat": "chat"}


class ApiKey(msgspec.Struct, frozen=True):
    """What a secret opens: a tenant's calls alone, or its memory too. The secret itself is not kept."""

    tenant: str
    digest: bytes
    scope: Scope = "all"

    def __repr__(self) -> str:
        return f"Key({self.tenant!r}, scope={self.scope!r})"


class Keys(msgspec.Struct, frozen=True):
    """All keys that are known; none means that nobody needs one."""

    entries: tuple[ApiKey, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.entries)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The keys in ``name:secret`` or ``name:secret:chat``; commas part them, or stand idle.

        Raises ValueError that tells which entry is wrong, and nothing of what stands in it.
        """
        if not text.strip():
            return cls()
        written = [entry for entry in map(str.strip, text.split(",")) if entry]
        if not written:  # whoever wrote commas meant to keep others out
            raise ValueError(f"there are commas, and no key; write {_EXPECTED}, or nothing")
        entries = tuple(_entry(number, entry) for number, entry in enumerate(written, 1))
        _check_distinct(entries)
        return cls(entries)

    def find(self, bearer: str) -> ApiKey | None:
        """The key of a secret; the time it takes tells nothing about which entry it was, or how near."""
        digest = _digest(bearer)
        found = None
        for key in self.entries:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found

    def match(self, headers: Mapping[str, str]) -> ApiKey | None:
        """The key that a request shows: ``Authorization: Bearer <secret>``, or ``api-key: <secret>``."""
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        return self.find(secret.strip() if scheme.lower() == "bearer" else headers.get("api-key", ""))


def _entry(number: int, written: str) -> ApiKey:
    name, _, rest = written.partition(":")
    secret, _, scope = rest.partition(":")
    if not _NAME.fullmatch(name) or not secret:
        named = "the name of 1 to 64 letters, digits, '.', '_' or '-'"
        raise ValueError(f"key {number}: write {_EXPECTED}, {named}")
    if not _SECRET.fullmatch(secret):
        raise ValueError(f"key {number}: a secret has no spaces, and no characters beyond ASCII")
    if scope not in _SCOPES:
        raise ValueError(f"key {number}: after a second ':' write 'chat'; a secret has no ':' and no ','")
    return ApiKey(name, _digest(secret), _SCOPES[scope])


def _check_distinct(entries: tuple[ApiKey, ...]) -> None:
    first: dict[bytes, int] = {}
    for number, key in enumerate(entries, 1):
        if key.digest in first:
            raise ValueError(f"keys {first[key.digest]} and {number}: two entries cannot have one secret")
        first[key.digest] = number


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


class Webhook(msgspec.Struct, frozen=True):
    """A secret, and the tenant whose calls are told of. The secret is never shown."""

    secret: bytes
    tenant: str

    def __repr__(self) -> str:
        return f"Webhook(tenant={self.tenant!r})"

    def verify(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Whether Agora's signature fits the raw body: the newer one where it is there, else the older one.

        They are HMAC-SHA256 and HMAC-SHA1 in hexadecimal digits (Agora, "Receive notifications").
        """
        newer, older = headers.get("agora-signature-v2"), headers.get("agora-signature")
        given, digest = (newer, hashlib.sha256) if newer is not None else (older or "", hashlib.sha1)
        expected = hmac.digest(self.secret, body, digest).hex()
        return hmac.compare_digest(expected.encode(), given.strip().lower().encode())
