"""Who may come in: a key's holder, or without keys whoever speaks from this machine."""

import re
from collections.abc import Mapping

from proxy.admission.keys import Keys
from proxy.errors import Forbidden, Unauthorized

# Probes ask under whatever name a container has.
_OPEN = frozenset({"/healthz", "/readyz"})
_SIGNED = frozenset({"/webhooks/agora"})
_CHAT_ONLY = "chat"
_FOR_ALL_KEYS = ("/models", "/v1/models", "/chat/completions", "/v1/chat/completions", "/pipelines/")
_NUMBER = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"


class Gate:
    """Admits a request under its tenant."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    @property
    def keys(self) -> Keys:
        """Those that are let in; none where this machine alone is."""
        return self._keys

    def admit(self, headers: Mapping[str, str], path: str) -> str:
        """The tenant; ``default`` where there are no keys, for what anybody may know, and for signed notices.

        Raises Forbidden for strangers where there are no keys, and for a key that may only chat;
        Unauthorized where a key is wanted and not given.
        """
        if path in _OPEN or path in _SIGNED:
            return "default"
        _refuse_preflights(headers)
        if not self._keys:
            self.check_host(headers)
            _refuse_foreign_pages(headers)
            return "default"
        key = self._keys.match(headers)
        if key is None:
            raise Unauthorized("Send a key that TURNKEEPER_KEYS knows, as 'Authorization: Bearer <key>'.")
        if key.scope == _CHAT_ONLY and not path.startswith(_FOR_ALL_KEYS):
            raise Forbidden("This key may chat, and nothing else.", code="insufficient_scope")
        return key.tenant

    @staticmethod
    def check_host(headers: Mapping[str, str]) -> None:
        """Raises Forbidden where this machine is called by a name that others could give it."""
        host = headers.get("host")
        # A page in a caller's browser can reach loopback under its own name (DNS rebinding).
        if host is not None and not is_loopback_name(host):
            advice = "set TURNKEEPER_KEYS to be called by other names"
            raise Forbidden(f"'{host[:80]}' is no loopback name; {advice}.", code="host_not_allowed")


def _refuse_preflights(headers: Mapping[str, str]) -> None:
    # A page sends no key with this question, and may not read any answer but one that allows it.
    if "access-control-request-method" in headers:
        raise _refused()


def _refused() -> Forbidden:
    advice = "let a server of yours call, which keeps the key (TURNKEEPER_KEYS) to itself"
    return Forbidden(f"Browsers may not call for pages of other sites; {advice}.", code="site_not_allowed")


def _refuse_foreign_pages(headers: Mapping[str, str]) -> None:
    # A page may post what looks like a form to loopback under its right name, and asks nobody first.
    if _is_foreign(headers):
        raise _refused()


def _is_foreign(headers: Mapping[str, str]) -> bool:
    """Whether a browser says that a page of another site calls; older ones tell its origin alone."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None or origin is None:
        return site == "cross-site"
    return not is_loopback_name(origin.partition("://")[2])


_IPV4 = re.compile(rf"127(?:\.{_NUMBER}){{3}}")


# The dot at the end says that the name is whole (RFC 1034, 3.1).
_NAME = re.compile(
    rf"(?:\[::1\]|(?:[a-z0-9_-]+\.)*localhost\.?|{_IPV4.pattern})(?::[0-9]{{1,5}})?", re.ASCII | re.IGNORECASE
)


def is_loopback_address(host: str) -> bool:
    """Whether listening on this host, an address or ``localhost``, admits callers of this machine only."""
    return host.lower() == "localhost" or host == "::1" or _IPV4.fullmatch(host) is not None


def is_loopback_name(host_header: str) -> bool:
    """Whether a Host header can mean nothing but this machine, whatever a DNS server says."""
    return _NAME.fullmatch(host_header) is not None
