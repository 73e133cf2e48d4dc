"""Login to the page: a cookie for the tenant, and a token against forged forms.

The signed cookie is ``key.expiry.nonce.mac``, made with the digest of the API key that was given: it ends
with that key, holds nothing of it, and every process that knows the key reads it. A browser without one gets
a nonce, for tokens alone. A client that sends a key with each request is given no cookie.
"""

import hmac
import re
import secrets
import time
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

import msgspec
from starlette.responses import Response

from proxy.admission.gate import ApiKey, Keys
from proxy.errors import Forbidden

SIGNED: Final = "turnkeeper"
VISIT: Final = "turnkeeper_visit"
LASTS: Final = 12 * 3600
_NONCE: Final = re.compile(r"[0-9a-f]{32}")
_SIGNED: Final = re.compile(r"([0-9a-f]{16})\.([0-9]{1,12})\.([0-9a-f]{32})\.([0-9a-f]{64})")
_PROCESS_SECRET: Final = secrets.token_bytes(32)
"""The secret of form tokens where there are no keys; worker processes inherit it."""


class Viewer(msgspec.Struct, frozen=True):
    """One browser. ``tenant`` is ``None`` before it has given a key where one is needed, as ``keyed`` says.

    ``token`` is that of its forms. ``nonce`` is set as a cookie where the browser has none.
    """

    tenant: str | None
    token: str
    nonce: str | None = None
    keyed: bool = False


def identify(headers: Mapping[str, str], keys: Keys) -> Viewer:
    """Identifies the browser by its key or its cookies; one with neither is new."""
    key = keys.match(headers)
    if key is not None and key.scope == "all":
        return Viewer(key.tenant, _token(_name(key), keys), keyed=True)
    pairs = (each.strip().partition("=") for each in headers.get("cookie", "").split(";"))
    cookies = {name: value for name, _, value in pairs}
    signed, visit = cookies.get(SIGNED, ""), cookies.get(VISIT, "")
    key = _signed_by(signed, keys)
    if key is not None:
        return Viewer(key.tenant, _token(signed, keys), keyed=True)
    # Not in the place of a signed one: after a link from elsewhere browsers show none, and still have it.
    has_nonce = bool(_NONCE.fullmatch(visit))
    nonce = visit if has_nonce else secrets.token_hex(16)
    tenant = None if keys else "default"
    return Viewer(tenant, _token(nonce, keys), nonce=None if has_nonce else nonce, keyed=bool(keys))


def sign(key: ApiKey, *, now: float) -> str:
    """A cookie for the holder of a key."""
    payload = f"{_name(key)}.{int(now) + LASTS}.{secrets.token_hex(16)}"
    return f"{payload}.{_mac(key, payload)}"


def check_form(viewer: Viewer, headers: Mapping[str, str], token: str) -> None:
    """Raises Forbidden for a form that is not from a page of ours."""
    foreign = headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}
    if foreign or viewer.nonce or not hmac.compare_digest(token.encode(), viewer.token.encode()):
        raise Forbidden("This form is not from here, or too old; go back, reload the page and try again.")


def set_cookie(
    response: Response, name: str, value: str, headers: Mapping[str, str], lasts: int | None = None
) -> None:
    """Sets a cookie in the response to a request; without ``lasts`` it goes when the browser is closed."""
    secure = is_secure(headers)
    response.set_cookie(name, value, max_age=lasts, secure=secure, httponly=True, samesite="strict")


def is_secure(headers: Mapping[str, str]) -> bool:
    """Whether the browser uses HTTPS, to the proxy in front of this server."""
    return headers.get("x-forwarded-proto", "").lower() == "https"


def _signed_by(cookie: str, keys: Keys) -> ApiKey | None:
    parts = _SIGNED.fullmatch(cookie)
    if parts is None or int(parts[2]) < time.time():
        return None
    payload = cookie.rpartition(".")[0]
    for key in keys.entries:
        if _name(key) == parts[1] and hmac.compare_digest(_mac(key, payload), parts[4]):
            return key if key.scope == "all" else None
    return None


def _name(key: ApiKey) -> str:
    return hmac.new(key.digest, b"page: name", sha256).hexdigest()[:16]


def _mac(key: ApiKey, payload: str) -> str:
    return hmac.new(key.digest, b"page: visit " + payload.encode(), sha256).hexdigest()


def _token(cookie: str, keys: Keys) -> str:
    secret = b"".join(key.digest for key in keys.entries) or _PROCESS_SECRET
    return hmac.new(secret, b"page: token " + cookie.encode(), sha256).hexdigest()
