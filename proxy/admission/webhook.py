"""Who may tell us of what happened: whoever knows the secret that both sides hold."""

import hashlib
import hmac
from collections.abc import Mapping

import msgspec


class Webhook(msgspec.Struct, frozen=True):
    """A secret, and the tenant whose calls are told of. The secret is never shown."""

    secret: bytes
    tenant: str

    def __repr__(self) -> str:
        return f"Webhook(tenant={self.tenant!r})"

    def signed(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Whether Agora's signature fits the raw body: the newer one where it is there, else the older one.

        They are HMAC-SHA256 and HMAC-SHA1 in hexadecimal digits (Agora, "Receive notifications").
        """
        newer, older = headers.get("agora-signature-v2"), headers.get("agora-signature")
        given, digest = (newer, hashlib.sha256) if newer is not None else (older or "", hashlib.sha1)
        expected = hmac.digest(self.secret, body, digest).hex()
        return hmac.compare_digest(expected.encode(), given.strip().lower().encode())
