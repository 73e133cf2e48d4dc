"""Which requests are admitted, with which scope, and which hosts count as loopback."""

import pytest

from proxy.admission.gate import Keys, is_loopback_address, is_loopback_name
from proxy.errors import RequestError, Unauthorized

OPEN = Keys()
LOCKED = Keys.parse("acme:whole,phone:part:chat")
WHOLE = {"authorization": "Bearer whole"}
PART = {"authorization": "Bearer part"}
FOREIGN = {"host": "evil.example", "sec-fetch-site": "cross-site", "origin": "https://evil.example"}
PREFLIGHT = {"access-control-request-method": "POST"}


def admitted(gate, headers, path="/v1/chat/completions"):
    """The tenant, or the code of the error."""
    try:
        return gate.admit(headers, path)
    except RequestError as error:
        return error.code


@pytest.mark.parametrize("gate", [OPEN, LOCKED])
@pytest.mark.parametrize("headers", [{}, WHOLE, PART, FOREIGN])
@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/webhooks/agora"])
def test_probes_and_webhooks_need_no_key(gate, headers, path):
    assert admitted(gate, headers, path) == "default"


@pytest.mark.parametrize(
    "path",
    [
        "/models", "/models/fake", "/v1/models", "/v1/models/fake", "/chat/completions",
        "/v1/chat/completions", "/pipelines/default/chat/completions", "/pipelines/default/models",
    ],
)  # fmt: skip
def test_each_key_may_chat(path):
    assert admitted(LOCKED, PART, path) == "phone"
    assert admitted(LOCKED, WHOLE, path) == "acme"
    assert admitted(LOCKED, {}, path) == "invalid_api_key"


@pytest.mark.parametrize(
    "path",
    [
        "/", "/metrics", "/v1/memory/sessions", "/v1/explain", "/v1/search", "/playground", "/healthz/",
        "/readyz/x", "/webhooks", "/webhooks/agora/", "/x/v1/models", "/pipelines",
    ],
)  # fmt: skip
def test_all_else_needs_a_key_without_a_scope(path):
    assert admitted(LOCKED, PART, path) == "insufficient_scope"
    assert admitted(LOCKED, WHOLE, path) == "acme"
    assert admitted(LOCKED, {}, path) == "invalid_api_key"


@pytest.mark.parametrize(
    ("headers", "answer"),
    [
        ({}, "default"),
        ({"host": "localhost:8080"}, "default"),
        ({"host": "evil.example"}, "host_not_allowed"),
        ({"sec-fetch-site": "cross-site"}, "site_not_allowed"),
        ({"sec-fetch-site": "same-origin"}, "default"),
        (
            {"sec-fetch-site": "same-origin", "origin": "null"},
            "default",
        ),  # a sandboxed page
        ({"sec-fetch-site": "cross-site", "origin": "http://localhost"}, "site_not_allowed"),
        ({"origin": "http://localhost:8080"}, "default"),
        ({"origin": "https://evil.example"}, "site_not_allowed"),
        ({"origin": "null"}, "site_not_allowed"),
        (PREFLIGHT, "site_not_allowed"),
        ({**WHOLE, **FOREIGN}, "host_not_allowed"),
    ],
)
def test_without_keys_this_machine_is_admitted(headers, answer):
    assert admitted(OPEN, headers) == answer


@pytest.mark.parametrize(
    ("headers", "answer"),
    [
        ({**WHOLE, **FOREIGN}, "acme"),
        (FOREIGN, "invalid_api_key"),
        ({**WHOLE, **PREFLIGHT}, "site_not_allowed"),
    ],
)
def test_with_keys_a_key_is_all_that_counts(headers, answer):
    assert admitted(LOCKED, headers) == answer


def test_of_a_long_name_only_the_beginning_is_repeated():
    with pytest.raises(RequestError, match=f"'{'x' * 80}' is not a loopback name"):
        OPEN.admit({"host": "x" * 4000}, "/")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.255.0.9", "::1", "localhost", "LocalHost"])
def test_these_addresses_admit_this_machine_alone(host):
    assert is_loopback_address(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "0.0.0.0",
        "::",
        "10.0.0.1",
        "127.1",
        "127.0.0.1.evil.com",
        "a.localhost",
        "localhost ",
        "[::1]",
        "127.0.0.1\n",
    ],
)
def test_other_addresses_may_admit_others(host):
    assert not is_loopback_address(host)


@pytest.mark.parametrize(
    "header",
    [
        "localhost",
        "LOCALHOST:8080",
        "app.localhost",
        "a.b.localhost:1",
        "127.0.0.1",
        "127.9.8.7:80",
        "[::1]",
        "[::1]:8080",
        "localhost.",
        "LOCALHOST.:8080",
        "app.localhost.",
    ],
)
def test_these_host_headers_mean_this_machine(header):
    assert is_loopback_name(header)


@pytest.mark.parametrize(
    "header",
    [
        "", " ", ":8080", "127.0.0.1.evil.com", "localhost.evil.com", "evil.com", "notlocalhost",
        ".localhost", "localhost..", ".", "evil.com.", "localhost.evil.com.", "[::1].", "localhost:.",
        "localhost:", "localhost:abc", "localhost:80:80", "localhost:123456",
        "127.0.0.1@evil.com", "evil.com#localhost", "evil.com/localhost", "evil.com:80.localhost",
        "127.1", "127.0.0.256", "127.0.0.01", "0.0.0.0", "::1", "[::]", "[::1", "[::1].evil.com",
        "[::ffff:127.0.0.1]", "localhost\n", "a b.localhost", "2130706433", "127.0.0.1:80\r\nx: y",
        "\u217cocalhost", "\u066127.0.0.1",
    ],
)  # fmt: skip
def test_other_host_headers_may_mean_another(header):
    assert not is_loopback_name(header)


@pytest.mark.parametrize("shown", ["Bearer acme:whole", "whole", "Bearer acme"])
def test_a_key_with_its_name_is_told_to_be_the_secret_alone(shown):
    with pytest.raises(Unauthorized, match="as 'Authorization: Bearer <secret>': the part after 'name:'"):
        LOCKED.admit({"authorization": shown}, "/v1/chat/completions")
