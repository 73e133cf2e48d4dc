"""Login to the page: a cookie for the tenant, and a token against forged forms.

The signed cookie is ``key.expiry.nonce.mac``, signed with the digest of the API key that was entered. It
becomes invalid with that key, reveals nothing of it, and can be checked by every process that has the key. A
browser without it gets a nonce cookie, for form tokens only. A client that sends a key with each request gets
no cookie.
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
    """A browser. ``keyed`` is whether it needs a key; without a valid one, its ``tenant`` is ``None``.

    ``token`` protects its forms. ``nonce`` is the value of a new cookie, ``None`` where it needs none.
    """

    tenant: str | None
    token: str
    nonce: str | None = None
    keyed: bool = False


def identify_viewer(headers: Mapping[str, str], keys: Keys) -> Viewer:
    """Identifies a browser by its key or its cookies; one with neither gets a new nonce."""
    key = keys.match(headers)
    if key is not None and key.scope == "all":
        return Viewer(key.tenant, _token(_name(key), keys), keyed=True)
    pairs = (each.strip().partition("=") for each in headers.get("cookie", "").split(";"))
    cookies = {name: value for name, _, value in pairs}
    signed, visit = cookies.get(SIGNED, ""), cookies.get(VISIT, "")
    key = _signed_by(signed, keys)
    if key is not None:
        return Viewer(key.tenant, _token(signed, keys), keyed=True)
    # The nonce must not replace the signed cookie, which browsers hold back after a link from another site.
    has_nonce = bool(_NONCE.fullmatch(visit))
    nonce = visit if has_nonce else secrets.token_hex(16)
    tenant = None if keys else "default"
    return Viewer(tenant, _token(nonce, keys), nonce=None if has_nonce else nonce, keyed=bool(keys))


def sign(key: ApiKey, *, now: float) -> str:
    """Returns the value of a signed cookie for a key, which expires twelve hours after ``now``."""
    payload = f"{_name(key)}.{int(now) + LASTS}.{secrets.token_hex(16)}"
    return f"{payload}.{_mac(key, payload)}"


def check_form(viewer: Viewer, headers: Mapping[str, str], token: str) -> None:
    """Raises Forbidden for a form that does not come from one of our pages."""
    foreign = headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}
    if foreign or viewer.nonce or not hmac.compare_digest(token.encode(), viewer.token.encode()):
        raise Forbidden("This form is from another site, or too old; go back, reload the page and try again.")


def set_cookie(
    response: Response, name: str, value: str, headers: Mapping[str, str], lasts: int | None = None
) -> None:
    """Sets a cookie for ``lasts`` seconds, or until the browser is closed; ``headers`` are the request's."""
    secure = is_secure(headers)
    response.set_cookie(name, value, max_age=lasts, secure=secure, httponly=True, samesite="strict")


def is_secure(headers: Mapping[str, str]) -> bool:
    """Whether the browser reached the reverse proxy in front of this server over HTTPS."""
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
