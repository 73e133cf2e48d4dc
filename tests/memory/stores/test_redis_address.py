"""Addresses of Redis in every form; errors about an invalid one contain no password."""

import pytest

from proxy.memory.stores.addresses import CLUSTER, SENTINEL, SINGLE, UNIX, RedisAddress
from proxy.memory.stores.redis import open as open_store


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("redis://localhost", RedisAddress(form=SINGLE, nodes=(("localhost", 6379),))),
        ("REDIS://h:1/2", RedisAddress(form=SINGLE, nodes=(("h", 1),), db=2)),
        ("redis://[::1]:7/0", RedisAddress(form=SINGLE, nodes=(("::1", 7),))),
        ("redis://u:p%40%2F@h:1", RedisAddress(form=SINGLE, nodes=(("h", 1),), user="u", password="p@/")),
        ("redis://:p@ss@h", RedisAddress(form=SINGLE, nodes=(("h", 6379),), password="p@ss")),
        ("redis://h?prefix=calls:", RedisAddress(form=SINGLE, nodes=(("h", 6379),), prefix="calls:")),
        ("rediss://h", RedisAddress(form=SINGLE, nodes=(("h", 6379),), tls={})),
        (
            "rediss://h?ssl_ca_certs=/etc/ca.pem",
            RedisAddress(form=SINGLE, nodes=(("h", 6379),), tls={"ssl_ca_certs": "/etc/ca.pem"}),
        ),
        ("redis+unix:///run/redis.sock?db=3", RedisAddress(form=UNIX, path="/run/redis.sock", db=3)),
        (
            "redis+sentinel://u:p@a,b:2/main/4?sentinel_password=s",
            RedisAddress(
                form=SENTINEL,
                nodes=(("a", 26379), ("b", 2)),
                service="main",
                db=4,
                user="u",
                password="p",
                sentinel_password="s",
            ),
        ),
        ("redis+cluster://a:1,b:2", RedisAddress(form=CLUSTER, nodes=(("a", 1), ("b", 2)))),
        ("rediss+cluster://a:1/0", RedisAddress(form=CLUSTER, nodes=(("a", 1),), tls={})),
    ],
)
def test_an_address_has_parts(written: str, expected: RedisAddress):
    assert RedisAddress.parse(written) == expected


@pytest.mark.parametrize(
    "written",
    [
        "",
        "redis:",
        "redis://",
        "redis:///1",
        "redis://u:secret@",
        "redis://u:secret@h:0",
        "redis://u:secret@h:65536",
        "redis://u:secret@h:port",
        "redis://u:secret@a..b",
        "redis+sentinel://u:secret@a,.b:2/main",
        f"redis+cluster://u:secret@{'x' * 64}.example:1",
        "redis://u:secret@a,b",
        "redis://u:secret@h/x",
        "redis://u:secret@h/1/2",
        "redis://u:secret@h?max_connections=3",
        "redis://u:secret@h?prefix=a{b}",
        "redis://u:secret@h?ssl_ca_certs=/ca",
        "rediss://u:secret@h?ssl_cert_reqs=none",
        "rediss+unix:///run/s",
        "redis+unix://secret/run/s",
        "redis+unix://",
        "redis+sentinel://u:secret@h",
        "redis+sentinel://u:secret@h/",
        "redis+cluster://u:secret@h/1",
        "redis+secret://h",
        "http://u:secret@h",
        "rediss://u:secret@h?ssl_ca_certs=/no/such/secret.pem",
    ],
)
def test_a_wrong_address_is_refused_without_being_shown(written: str):
    with pytest.raises(ValueError) as refusal:
        open_store(written, deadline=1)
    assert "Redis" in str(refusal.value)
    assert "secret" not in str(refusal.value)


def test_a_password_is_never_part_of_what_is_printed():
    assert "secret" not in repr(RedisAddress.parse("redis+sentinel://u:secret@h/s?sentinel_password=secret"))
