"""Whoever opens connections."""

import asyncio
import errno
import ssl
from typing import Final

from proxy.errors import NoFilesLeft, UpstreamError, UpstreamUnreachable
from proxy.http1.connection import Connection
from proxy.http1.origin import Origin
from proxy.http1.proxies import Proxy
from proxy.http1.route import Route
from proxy.http1.tunnel import Tunnel

# No fault of whoever is asked.
_NO_FILES_LEFT: Final = {errno.EMFILE, errno.ENFILE}


class Dialer:
    """Opens connections along one route."""

    def __init__(self, route: Route) -> None:
        self._route = route

    async def dial(self, connection: Connection) -> None:
        """`connection` can carry requests now; UpstreamUnreachable or NoFilesLeft says why it cannot."""
        try:
            await (self._through(connection) if self._route.tunnelled else self._straight(connection))
        except ssl.SSLCertVerificationError as error:
            raise UpstreamUnreachable(self._distrust(error)) from None
        except TimeoutError:
            raise
        except (OSError, UnicodeError) as error:  # the latter for a name that cannot be looked up
            raise self._fault(error) from None

    async def _straight(self, connection: Connection) -> None:
        first = self._route.first
        tls = self._route.tls if first.scheme == "https" else None
        await asyncio.get_running_loop().create_connection(
            lambda: connection, first.host, first.port, ssl=tls
        )

    async def _through(self, connection: Connection) -> None:
        route, loop, first = self._route, asyncio.get_running_loop(), self._route.first
        tls = route.tls if first.scheme == "https" else None
        raw, tunnel = await loop.create_connection(
            lambda: Tunnel(str(first)), first.host, first.port, ssl=tls
        )
        try:
            await tunnel.opened(raw, route.connect_request)
            await self._encrypt(raw, connection, route.origin)
        except BaseException:
            # Aborting one that has ended raises in asyncio (3.11), and TLS may have ended it already.
            if not raw.is_closing():
                raw.abort()
            raise

    async def _encrypt(self, raw: asyncio.Transport, connection: Connection, origin: Origin | Proxy) -> None:
        if (tls := self._route.tls) is None:
            raise UpstreamUnreachable(f"no TLS for {origin}")
        loop = asyncio.get_running_loop()
        transport = await loop.start_tls(raw, connection, tls, server_hostname=origin.host)
        if transport is None:
            raise ConnectionResetError("the connection was lost during the TLS handshake")
        connection.connection_made(transport)

    def _fault(self, error: OSError | UnicodeError) -> UpstreamError:
        told = f"cannot connect to {self._route}: {error}"
        if isinstance(error, OSError) and error.errno in _NO_FILES_LEFT:
            return NoFilesLeft(f"{told}; let this server have more of them (ulimit -n)")
        return UpstreamUnreachable(f"{told}; check its address")

    def _distrust(self, error: ssl.SSLCertVerificationError) -> str:
        return (
            f"the TLS certificate of {self._route} was not accepted: {error.verify_message}; "
            "check the host name, and SSL_CERT_FILE for a certificate authority of your own"
        )
