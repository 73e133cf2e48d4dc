"""Hosts that mean this machine alone."""

import pytest

from proxy.admission.gate import is_loopback_address, is_loopback_name


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
