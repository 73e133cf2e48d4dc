"""TLS is verified, always."""

import asyncio
import datetime as dt
import random
import ssl
from typing import Any

import pytest
import trustme

from proxy.errors import UpstreamBroken, UpstreamUnreachable
from tests.contract_upstream import Make, ask, rest, server_context, trusting, whole
from tests.peers.http_peer import CHUNKED, LAST, Talk, answering, chunk, serve, sized

pytestmark = pytest.mark.anyio


async def test_tls_is_verified_with_the_environment_s_authorities(
    client: Make, tmp_path: Any, monkeypatch: Any
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    async with serve(
        answering(CHUNKED, chunk(b"hello"), LAST), tls=server_context(authority, "localhost")
    ) as peer:
        upstream = client(f"https://localhost:{peer.port}")
        assert [await whole(upstream), await whole(upstream)] == [b"hello", b"hello"]
        assert len(peer.talks) == 1
        assert peer.talks[0].transport.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"


async def test_wrong_host_unknown_authority_and_expiry_are_refused(client: Make) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    past = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    cases = {
        "mismatch|not valid for|IP address": server_context(authority, "elsewhere.test"),
        "unable to get local issuer|self.signed": server_context(stranger, "127.0.0.1"),
        "expired": server_context(authority, "127.0.0.1", not_before=past, not_after=past + dt.timedelta(1)),
    }
    for why, tls in cases.items():
        async with serve(answering(sized(b"hi")), tls=tls) as peer:
            with pytest.raises(UpstreamUnreachable, match=why):
                await ask(client(peer.url, context=trusting(authority)))
            assert not any(talk.requests for talk in peer.talks)


async def test_unverifying_contexts_are_refused(client: Make) -> None:
    context = ssl.create_default_context()
    context.verify_mode = ssl.CERT_OPTIONAL
    with pytest.raises(ValueError, match="verify"):
        client("https://h", context=context)
    context = ssl.create_default_context()
    context.check_hostname = False
    with pytest.raises(ValueError, match="verify"):
        client("https://h", context=context)


async def test_plain_http_where_tls_was_expected(client: Make) -> None:
    async with serve(lambda talk: talk.send_slowly(b"HTTP/1.1 400 Bad\r\n\r\n")) as peer:
        with pytest.raises(UpstreamUnreachable):
            await ask(client(f"https://127.0.0.1:{peer.port}"))


@pytest.mark.parametrize(
    ("data", "complete"),
    [(sized(b"hello"), True), (CHUNKED + chunk(b"hello"), False), (b"HTTP/1.1 200 OK\r\n\r\nhello", True)],
)
@pytest.mark.parametrize("polite", [True, False])
async def test_tls_ends(client: Make, data: bytes, complete: bool, polite: bool) -> None:
    authority = trustme.CA()

    async def script(talk: Talk) -> None:
        await talk.request()
        await talk.send_slowly(data)
        if polite:
            talk.close()
        else:
            talk.abort()  # the socket is closed without TLS's own goodbye

    async with serve(script, tls=server_context(authority, "127.0.0.1")) as peer:
        upstream = client(peer.url, context=trusting(authority))
        if complete:
            assert await whole(upstream) == b"hello"
        else:
            with pytest.raises(UpstreamBroken):
                await whole(upstream)


async def test_a_slow_reader_over_tls_gets_everything(client: Make) -> None:
    authority = trustme.CA()
    body = random.randbytes(8_000_000)
    async with serve(answering(sized(body)), tls=server_context(authority, "127.0.0.1")) as peer:
        response = await ask(client(peer.url, context=trusting(authority)))
        await asyncio.sleep(0.2)
        assert await rest(response) == body
