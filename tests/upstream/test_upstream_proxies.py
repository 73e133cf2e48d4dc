"""The proxies that the environment names."""

import asyncio
from typing import Any

import pytest
import trustme

from proxy.errors import ConfigError, UpstreamTimeout, UpstreamUnreachable
from proxy.upstream.dial import Origin, Proxy
from tests.contract_upstream import Make, ask, server_context, trusting, whole
from tests.peers.http_peer import answering, forwarding_proxy, serve, sized

pytestmark = pytest.mark.anyio


def _via(peer: Any, **more: str) -> dict[str, str]:
    return {
        "https_proxy": f"http://us%40er:pw@127.0.0.1:{peer.port}",
        "HTTP_PROXY": f"us:pw@127.0.0.1:{peer.port}",
    } | more


async def test_https_goes_through_a_tunnel(client: Make) -> None:
    authority = trustme.CA()
    async with (
        forwarding_proxy() as proxy,
        serve(answering(sized(b"hi")), tls=server_context(authority, "127.0.0.1")) as peer,
    ):
        upstream = client(peer.url, environ=_via(proxy), context=trusting(authority))
        assert [await whole(upstream), await whole(upstream)] == [b"hi", b"hi"]
        (connect,) = proxy.talks[0].requests
        assert connect.line == b"CONNECT 127.0.0.1:%d HTTP/1.1" % peer.port
        assert connect.headers[b"proxy-authorization"] == b"Basic dXNAZXI6cHc="
        assert [request.line for request in peer.talks[0].requests] == [
            b"POST /v1/chat/completions HTTP/1.1"
        ] * 2
        assert b"proxy-authorization" not in peer.talks[0].requests[0].headers
        await upstream.aclose()
        await proxy.all_closed()


async def test_a_tunnel_still_verifies(client: Make) -> None:
    async with (
        forwarding_proxy() as proxy,
        serve(answering(b""), tls=server_context(trustme.CA(), "127.0.0.1")) as peer,
    ):
        with pytest.raises(UpstreamUnreachable, match="certificate"):
            await ask(client(peer.url, environ=_via(proxy)))
        await proxy.all_closed()


async def test_http_goes_to_a_forward_proxy(client: Make) -> None:
    async with forwarding_proxy() as proxy:
        assert await whole(client("http://model.test/v1", environ=_via(proxy))) == b"forwarded"
        (request,) = proxy.talks[0].requests
        assert request.line == b"POST http://model.test/v1/chat/completions HTTP/1.1"
        assert request.headers[b"host"] == b"model.test"
        assert request.headers[b"proxy-authorization"] == b"Basic dXM6cHc="


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("then", ["wait", "close"])
async def test_a_proxy_that_refuses(client: Make, scheme: str, then: str) -> None:
    refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n"
    async with serve(answering(refusal, then=then)) as proxy:
        with pytest.raises(UpstreamUnreachable, match="407") as caught:
            await ask(client(f"{scheme}://model.test", environ=_via(proxy)))
        assert "pw" not in str(caught.value)


@pytest.mark.parametrize("then", ["close", "abort"])
@pytest.mark.parametrize("pieces", [1, 2])
async def test_a_proxy_that_lets_us_through_to_nobody(client: Make, then: str, pieces: int) -> None:
    passed = [b"HTTP/1.1 200 OK\r\n\r\n", b"no TLS"][:pieces]
    async with serve(answering(*passed, then=then)) as proxy:
        for _ in range(20):
            with pytest.raises(UpstreamUnreachable):
                await ask(client("https://model.test", environ=_via(proxy)))
        await proxy.all_closed()


async def test_a_silent_proxy_is_bounded(client: Make) -> None:
    async with serve(lambda _: asyncio.sleep(60)) as proxy:
        with pytest.raises(UpstreamTimeout, match="no connection"):
            await ask(client("https://model.test", environ=_via(proxy), connect=0.1))
        await proxy.all_closed()


async def test_tls_inside_tls(client: Make) -> None:
    authority = trustme.CA()
    tls = server_context(authority, "127.0.0.1")
    async with (
        forwarding_proxy() as plain,
        serve(answering(sized(b"hi")), tls=tls) as peer,
        serve(plain.script, tls=tls) as proxy,
    ):
        environ = {"ALL_PROXY": f"https://127.0.0.1:{proxy.port}"}
        assert await whole(client(peer.url, environ=environ, context=trusting(authority))) == b"hi"


@pytest.mark.parametrize(
    ("no_proxy", "direct"),
    [
        ("*", True),
        ("127.0.0.1", True),
        ("127.0.0.0/8", True),
        ("127.0.0.1:{port}", True),
        (" x.test, 127.0.0.1 ", True),
        ("127.0.0.1:1", False),
        ("10.0.0.0/8", False),
        ("0.0.1", False),
        ("", False),
        ("localhost", False),
    ],
)
@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
async def test_no_proxy(client: Make, no_proxy: str, direct: bool, name: str) -> None:
    async with forwarding_proxy() as proxy, serve(answering(sized(b"direct"))) as peer:
        environ = _via(proxy, **{name: no_proxy.format(port=peer.port)})
        assert await whole(client(peer.url, environ=environ)) == (b"direct" if direct else b"forwarded")


@pytest.mark.parametrize(
    "url",
    [
        "socks5://u:pw@h:1",
        "http://u:pw/x@h:1",
        "u:pw@h:port",
        "u:pw@h:99999",
        "http://u:pw@",
        "http://[u:pw@",
        "http://u:pw@a..b:1",
        f"http://u:pw@{'x' * 64}:1",
    ],
)
@pytest.mark.parametrize("name", ["HTTPS_PROXY", "all_proxy"])
async def test_other_proxies_are_refused_by_name_without_their_secrets(
    client: Make, name: str, url: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{name.upper()} ") as caught:
        client("https://h", environ={name: url})
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "host", "direct"),
    [
        ("model.test", "model.test", True),
        ("model.test", "a.model.test", True),
        (".model.test", "a.model.test", True),
        ("*.model.test", "a.model.test", True),
        ("odel.test", "model.test", False),
        ("MODEL.test", "model.test", True),
        ("[::1]:443", "[::1]", True),
        ("::1", "[::1]", True),
        ("fe80::/16", "[::1]", False),
        (".", "model.test", False),
    ],
)
async def test_no_proxy_by_name(entry: str, host: str, direct: bool) -> None:
    proxy = Proxy.between(Origin.of(f"https://{host}"), {"ALL_PROXY": "p:1", "no_proxy": entry})
    assert (proxy is None) == direct
