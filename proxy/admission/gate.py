"""Admission of requests: by API key or, without keys, from this machine alone; webhooks by signature."""

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Final, Literal, Self

import msgspec

from proxy.errors import Forbidden, Unauthorized

# Probes ask under whatever name a container has; webhook events carry a signature.
_WITHOUT_KEY: Final = frozenset({"/healthz", "/readyz", "/webhooks/agora"})
_FOR_ALL_KEYS: Final = ("/models", "/v1/models", "/chat/completions", "/v1/chat/completions", "/pipelines/")
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4: Final = re.compile(rf"127(?:\.{_BYTE}){{3}}")
# The dot at the end says that the name is whole (RFC 1034, 3.1).
_HOST: Final = re.compile(
    rf"(?:\[::1\]|(?:[a-z0-9_-]+\.)*localhost\.?|{_IPV4.pattern})(?::[0-9]{{1,5}})?", re.ASCII | re.IGNORECASE
)

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
    """All API keys; without any, this machine alone is admitted."""

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
            raise ValueError(f"there are commas, but no key; write {_FORMAT}, or nothing")
        keys = tuple(_parse_key(number, entry) for number, entry in enumerate(entries, 1))
        first: dict[bytes, int] = {}
        for number, key in enumerate(keys, 1):
            if first.setdefault(key.digest, number) != number:
                raise ValueError(
                    f"keys {first[key.digest]} and {number} have the same secret; give each its own"
                )
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

    def admit(self, headers: Mapping[str, str], path: str) -> str:
        """Returns the tenant, which is ``default`` where no key is needed.

        Raises Unauthorized without a key that is needed, and Forbidden for a key of too small a scope, for
        another host's name without keys, and for a browser that asks on behalf of another site.
        """
        if path in _WITHOUT_KEY:
            return "default"
        # A page sends no key with its preflight, and may not read any answer but one that allows it.
        if "access-control-request-method" in headers:
            raise _site_not_allowed()
        if not self.entries:
            host = headers.get("host")
            if host is not None and not _HOST.fullmatch(host):
                check_host(headers)
            # A page may post what looks like a form to loopback under its right name, without a preflight.
            site, origin = headers.get("sec-fetch-site"), headers.get("origin")
            if site is None and origin is not None:  # an older browser
                site = "same-site" if is_loopback_name(origin.partition("://")[2]) else "cross-site"
            if site == "cross-site":
                raise _site_not_allowed()
            return "default"
        key = self.match(headers)
        if key is None:
            raise Unauthorized(
                "Send the secret of a key as 'Authorization: Bearer <secret>': the part after 'name:' in"
                " TURNKEEPER_KEYS."
            )
        if key.scope == "chat" and not path.startswith(_FOR_ALL_KEYS):
            raise Forbidden("This key is for chat completions only.", code="insufficient_scope")
        return key.tenant


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
        raise ValueError(f"key {number}: a secret must not contain spaces or characters beyond ASCII")
    if scope not in _SCOPES:
        raise ValueError(
            f"key {number}: after a second ':' write 'chat'; a secret must not contain ':' or ','"
        )
    return ApiKey(name, _digest(secret), _SCOPES[scope], len(secret) < _SHORT)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def check_host(headers: Mapping[str, str]) -> None:
    """Raises Forbidden where this machine is called by a name that is not loopback's."""
    host = headers.get("host")
    # A page in a browser of this machine can reach loopback under its own name (DNS rebinding).
    if host is not None and not is_loopback_name(host):
        advice = "set TURNKEEPER_KEYS to be called by other names"
        raise Forbidden(f"'{host[:80]}' is not a loopback name; {advice}.", code="host_not_allowed")


def is_loopback_address(host: str) -> bool:
    """Whether listening on ``host``, an address or ``localhost``, admits calls of this machine only."""
    return host.lower() == "localhost" or host == "::1" or _IPV4.fullmatch(host) is not None


def is_loopback_name(host_header: str) -> bool:
    """Whether a Host header can mean nothing but this machine, whatever a DNS server says."""
    return _HOST.fullmatch(host_header) is not None


def _site_not_allowed() -> Forbidden:
    advice = "let a server of yours call, which keeps the key (TURNKEEPER_KEYS) to itself"
    return Forbidden(f"Browsers may not call for pages of other sites; {advice}.", code="site_not_allowed")
