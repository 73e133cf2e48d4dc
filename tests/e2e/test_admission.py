"""Keys and loopback, tested from outside."""

import httpx2
import pytest

from tests.peers.fake_upstream import FakeUpstream
from tests.proxy_server import ProxyServer, Serve

KEYED = """
keys: "${TURNKEEPER_KEYS}"
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", api_key: sk-upstream}}
pipelines: {default: {upstreams: [main]}}
"""
KEYS = "acme:s3cret-one,acme:s3cret-two,phone:only-chat:chat"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("key", ["s3cret-one", "s3cret-two", "only-chat"])
def test_a_known_key_is_let_in(serve: Serve, upstream: FakeUpstream, key: str) -> None:
    proxy = serve(KEYED, TURNKEEPER_KEYS=KEYS)
    assert proxy.chat(headers=bearer(key)).status_code == 200
    assert proxy.client.get("/v1/models", headers=bearer(key)).status_code == 200
    assert upstream.last.headers["authorization"] == "Bearer sk-upstream"


@pytest.mark.parametrize(
    "headers", [{}, bearer("wrong"), {"Authorization": "Bearer"}, {"Authorization": "Basic s3cret-one"}]
)
def test_anyone_else_is_401(serve: Serve, upstream: FakeUpstream, headers: dict[str, str]) -> None:
    proxy = serve(KEYED, TURNKEEPER_KEYS=KEYS)
    for got in (
        proxy.chat(headers=headers),
        proxy.client.get("/v1/models", headers=headers),
        proxy.client.get("/nowhere", headers=headers),
    ):
        assert got.status_code == 401
        assert got.headers["www-authenticate"] == "Bearer"
        assert got.json()["error"]["code"] == "invalid_api_key"
    assert not upstream.requests


def test_health_needs_no_key(serve: Serve) -> None:
    proxy = serve(KEYED, TURNKEEPER_KEYS=KEYS)
    assert proxy.client.get("/healthz").status_code == 200
    assert proxy.client.get("/readyz").status_code == 200


@pytest.mark.parametrize("host", ["turnkeeper", "turnkeeper:8080", "10.0.0.1:8080", "evil.example"])
def test_health_is_told_under_any_name(proxy: ProxyServer, host: str) -> None:
    for path in ("/healthz", "/readyz"):
        assert proxy.client.get(path, headers={"Host": host}).status_code == 200
    for path in ("/metrics", "/v1/models", "/healthz/", "/"):
        assert proxy.client.get(path, headers={"Host": host}).status_code == 403


def test_a_key_that_may_only_chat_may_only_chat(serve: Serve) -> None:
    proxy = serve(KEYED, TURNKEEPER_KEYS=KEYS)
    assert proxy.client.get("/v1/memory/sessions", headers=bearer("only-chat")).status_code == 403
    assert proxy.client.get("/v1/memory/sessions", headers=bearer("s3cret-one")).status_code == 404


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8080", "127.0.0.1", "127.9.9.9:1", "[::1]:80", "a.localhost", "localhost.:80"],
)
def test_without_keys_loopback_names_are_let_in(proxy: ProxyServer, host: str) -> None:
    assert proxy.chat(headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", "a"]
)
def test_without_keys_a_foreign_name_is_told_what_to_set(
    proxy: ProxyServer, upstream: FakeUpstream, host: str
) -> None:
    got = proxy.chat(headers={"Host": host})
    assert got.status_code == 403
    assert "TURNKEEPER_KEYS" in got.json()["error"]["message"]
    assert not upstream.requests


def test_with_keys_any_name_will_do(serve: Serve) -> None:
    proxy = serve(KEYED, TURNKEEPER_KEYS=KEYS)
    assert proxy.chat(headers={"Host": "voice.example", **bearer("s3cret-one")}).status_code == 200


def simple_post(proxy: ProxyServer, site: str, path: str = "/v1/chat/completions") -> httpx2.Response:
    """What a browser sends on behalf of a page without asking whether it may."""
    body = '{"model": "fake", "messages": [{"role": "user", "content": "Hi"}], "session_id": "s1"}'
    headers = {"content-type": "text/plain", "sec-fetch-site": site}
    return proxy.client.post(path, content=body, headers=headers)


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/pipelines/default/chat/completions", "/v1/explain"]
)
def test_without_keys_a_page_of_another_site_is_refused(
    proxy: ProxyServer, upstream: FakeUpstream, path: str
) -> None:
    got = simple_post(proxy, "cross-site", path)
    assert (got.status_code, got.json()["error"]["code"]) == (403, "site_not_allowed")
    assert "TURNKEEPER_KEYS" in got.json()["error"]["message"]
    assert not upstream.requests


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
def test_so_is_one_whose_browser_says_only_where_it_is_from(
    proxy: ProxyServer, upstream: FakeUpstream, origin: str
) -> None:
    got = proxy.chat(headers={"origin": origin})
    assert (got.status_code, got.json()["error"]["code"]) == (403, "site_not_allowed")
    assert not upstream.requests
    assert proxy.chat(headers={"origin": proxy.root}).status_code == 200


@pytest.mark.parametrize("site", ["same-origin", "same-site", "none"])
def test_without_keys_pages_of_this_machine_are_let_in(proxy: ProxyServer, site: str) -> None:
    assert simple_post(proxy, site).status_code == 200


def test_with_keys_a_page_of_any_site_may_call_that_has_one(serve: Serve) -> None:
    proxy = serve(KEYED, TURNKEEPER_KEYS=KEYS)
    foreign = {"sec-fetch-site": "cross-site"}
    assert proxy.chat(headers={**foreign, **bearer("s3cret-one")}).status_code == 200
    assert proxy.chat(headers=foreign).status_code == 401


@pytest.mark.parametrize("keys", ["", KEYS])
def test_a_browser_that_asks_whether_a_page_may_call_is_told_what_to_do(serve: Serve, keys: str) -> None:
    proxy = serve(KEYED, TURNKEEPER_KEYS=keys)
    asked = {"origin": "https://app.example", "access-control-request-method": "POST"}
    got = proxy.client.options("/v1/chat/completions", headers=asked)
    assert (got.status_code, got.json()["error"]["code"]) == (403, "site_not_allowed")
    assert "a server of yours" in got.json()["error"]["message"]
    assert not any(name.startswith("access-control") for name in got.headers)


def test_a_link_from_another_site_leads_to_the_page(proxy: ProxyServer) -> None:
    assert proxy.client.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200
