"""Who looks at the page: a cookie that says so, and a token that no other site can know.

The signed cookie is ``key.expiry.nonce.mac``, made with the digest of the key that was given: it ends with
that key, holds nothing of it, and every process that knows the key reads it. Whoever has none gets
a nonce, for tokens alone. Whoever sends a key with each request is given no cookie.
"""

import hmac
import re
import secrets
import time
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

import msgspec

from proxy.admission.keys import ApiKey, Keys
from proxy.errors import Forbidden

SIGNED: Final = "turnkeeper"
VISIT: Final = "turnkeeper_visit"
LASTS: Final = 12 * 3600
_NONCE = re.compile(r"[0-9a-f]{32}")
_SIGNED = re.compile(r"([0-9a-f]{16})\.([0-9]{1,12})\.([0-9a-f]{32})\.([0-9a-f]{64})")
_ALONE: Final = secrets.token_bytes(32)
"""What tokens are made with where there are no keys: the process's own, made at its start."""


class Viewer(msgspec.Struct, frozen=True):
    """One browser. ``tenant`` is ``None`` before a key was given where one is needed, as ``keyed`` says.

    ``nonce`` is what a browser without a cookie of ours is to be given as one.
    """

    tenant: str | None
    token: str
    nonce: str | None = None
    keyed: bool = False


def identify(headers: Mapping[str, str], keys: Keys) -> Viewer:
    """Whose request this is; a browser that shows neither a key nor a cookie of ours is a new one."""
    held = keys.match(headers)
    if held is not None and held.scope == "all":
        return Viewer(held.tenant, _token(_name(held), keys), keyed=True)
    cookies = _cookies(headers.get("cookie", ""))
    shown, visit = cookies.get(SIGNED, ""), cookies.get(VISIT, "")
    key = _signed_by(shown, keys)
    if key is not None:
        return Viewer(key.tenant, _token(shown, keys), keyed=True)
    # Not in the place of a signed one: after a link from elsewhere browsers show none, and still have it.
    known = bool(_NONCE.fullmatch(visit))
    nonce = visit if known else secrets.token_hex(16)
    tenant = None if keys else "default"
    return Viewer(tenant, _token(nonce, keys), nonce=None if known else nonce, keyed=bool(keys))


def sign(key: ApiKey, *, now: float) -> str:
    """A cookie for the holder of a key."""
    said = f"{_name(key)}.{int(now) + LASTS}.{secrets.token_hex(16)}"
    return f"{said}.{_mac(key, said)}"


def check_form(who: Viewer, headers: Mapping[str, str], given: str) -> None:
    """Raises Forbidden for a form that is not from a page of ours."""
    foreign = headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}
    if foreign or who.nonce or not hmac.compare_digest(given.encode(), who.token.encode()):
        raise Forbidden("This form is not from here, or too old; go back, reload the page and try again.")


def set_cookie(name: str, value: str, *, secure: bool, lasts: int | None = None) -> str:
    """The header that gives a browser its cookie; without ``lasts`` it goes when the browser is closed."""
    parts = [f"{name}={value}", "Path=/", "HttpOnly", "SameSite=Strict"]
    parts += [f"Max-Age={lasts}"] if lasts is not None else []
    return "; ".join([*parts, "Secure"] if secure else parts)


def is_secure(scheme: str, headers: Mapping[str, str]) -> bool:
    """Whether the browser came by HTTPS, to us or to what stands in front of us."""
    return "https" in {scheme, headers.get("x-forwarded-proto", "").lower()}


def _cookies(header: str) -> Mapping[str, str]:
    """By name; what another application of the same host has set may look like anything."""
    pairs = (each.strip().partition("=") for each in header.split(";"))
    return {name: value for name, _, value in pairs}


def _signed_by(shown: str, keys: Keys) -> ApiKey | None:
    parts = _SIGNED.fullmatch(shown)
    if parts is None or int(parts[2]) < time.time():
        return None
    said = shown.rpartition(".")[0]
    for key in keys.entries:
        if _name(key) == parts[1] and hmac.compare_digest(_mac(key, said), parts[4]):
            return key if key.scope == "all" else None
    return None


def _name(key: ApiKey) -> str:
    return hmac.new(key.digest, b"page: name", sha256).hexdigest()[:16]


def _mac(key: ApiKey, said: str) -> str:
    return hmac.new(key.digest, b"page: visit " + said.encode(), sha256).hexdigest()


def _token(cookie: str, keys: Keys) -> str:
    secret = b"".join(key.digest for key in keys.entries) or _ALONE
    return hmac.new(secret, b"page: token " + cookie.encode(), sha256).hexdigest()
