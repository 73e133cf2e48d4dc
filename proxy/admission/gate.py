"""Admission of requests: by their API key or, without keys, from this machine alone."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from proxy.admission.keys import Keys
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


class Gate(msgspec.Struct, frozen=True):
    """Admits requests under their tenant; without ``keys``, from this machine alone."""

    keys: Keys

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
        if not self.keys.entries:
            self.check_host(headers)
            # A page may post what looks like a form to loopback under its right name, without a preflight.
            site, origin = headers.get("sec-fetch-site"), headers.get("origin")
            if site is None and origin is not None:  # an older browser
                site = "same-site" if is_loopback_name(origin.partition("://")[2]) else "cross-site"
            if site == "cross-site":
                raise _site_not_allowed()
            return "default"
        key = self.keys.match(headers)
        if key is None:
            raise Unauthorized(
                "Send a key's secret as 'Authorization: Bearer <secret>': what stands behind 'name:' in"
                " TURNKEEPER_KEYS."
            )
        if key.scope == "chat" and not path.startswith(_FOR_ALL_KEYS):
            raise Forbidden("This key may chat, and nothing else.", code="insufficient_scope")
        return key.tenant

    @staticmethod
    def check_host(headers: Mapping[str, str]) -> None:
        """Raises Forbidden where this machine is called by a name that is not loopback's."""
        host = headers.get("host")
        # A page in a browser of this machine can reach loopback under its own name (DNS rebinding).
        if host is not None and not is_loopback_name(host):
            advice = "set TURNKEEPER_KEYS to be called by other names"
            raise Forbidden(f"'{host[:80]}' is no loopback name; {advice}.", code="host_not_allowed")


def is_loopback_address(host: str) -> bool:
    """Whether listening on ``host``, an address or ``localhost``, admits calls of this machine only."""
    return host.lower() == "localhost" or host == "::1" or _IPV4.fullmatch(host) is not None


def is_loopback_name(host_header: str) -> bool:
    """Whether a Host header can mean nothing but this machine, whatever a DNS server says."""
    return _HOST.fullmatch(host_header) is not None


def _site_not_allowed() -> Forbidden:
    advice = "let a server of yours call, which keeps the key (TURNKEEPER_KEYS) to itself"
    return Forbidden(f"Browsers may not call for pages of other sites; {advice}.", code="site_not_allowed")
