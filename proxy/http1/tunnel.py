"""A way through a proxy."""

import asyncio

from proxy.errors import UpstreamUnreachable

_HEAD = 16 << 10
_PASSED = b"2"


class Tunnel(asyncio.Protocol):
    """The talk with a proxy before TLS begins: CONNECT, and its yes or no."""

    def __init__(self, proxy: str) -> None:
        self._proxy = proxy
        self._seen = b""
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def opened(self, transport: asyncio.Transport, connect_request: bytes) -> None:
        """Return when the proxy has let us through; UpstreamUnreachable when it did not."""
        transport.write(connect_request)
        await self._answered

    def data_received(self, data: bytes) -> None:
        """Some bytes of the proxy's answer came."""
        self._seen += data
        if b"\r\n\r\n" in self._seen or len(self._seen) > _HEAD:
            self._judge()

    def connection_lost(self, exc: Exception | None) -> None:
        """The proxy is gone."""
        self._refuse(f"closed the connection: {exc or 'without an answer'}")

    def _judge(self) -> None:
        line, _, _ = self._seen.partition(b"\r\n")
        version, _, status = line.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not status.startswith(_PASSED):
            self._refuse(f"said {line[:80].decode('latin-1')!r}")
        elif not self._answered.done():
            self._answered.set_result(None)

    def _refuse(self, what: str) -> None:
        if not self._answered.done():
            self._answered.set_exception(
                UpstreamUnreachable(
                    f"the proxy {self._proxy} {what}; check the proxy variables and its user name"
                )
            )
            # Whoever waited may be gone by now: the loop need not complain.
            self._answered.exception()
