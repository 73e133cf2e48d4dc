from email.utils import formatdate

import pytest

from proxy.circuit import retry_after
from proxy.errors import (
    UpstreamBroken,
    UpstreamRedirected,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from proxy.upstream.attempt import retry_policy


def refused(status, **headers):
    return UpstreamRefused(status, b"", {name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize("status", [400, 413, 415, 422, 451, 499])
def test_a_bad_request_is_the_clients_to_mend(status):
    wanted = retry_policy(refused(status))
    assert not (wanted.retry or wanted.fall_back or wanted.unhealthy)


@pytest.mark.parametrize("status", [401, 402, 403, 404, 405, 410])
def test_what_is_an_upstreams_own_matter_another_may_see_otherwise(status):
    wanted = retry_policy(refused(status))
    assert wanted.fall_back
    assert not (wanted.retry or wanted.unhealthy)


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_what_passes_is_asked_again(status):
    wanted = retry_policy(refused(status))
    assert wanted.retry
    assert wanted.fall_back
    assert wanted.unhealthy == (status >= 500), "to be busy is not to be ill"


@pytest.mark.parametrize("error", [UpstreamBroken("x"), UpstreamUnreachable("x"), UpstreamTimeout("x")])
def test_a_failed_connection_is_tried_again_and_counts(error):
    wanted = retry_policy(error)
    assert wanted.retry
    assert wanted.unhealthy
    assert wanted.last == isinstance(error, UpstreamTimeout), "after one silence, another upstream goes first"


def test_a_redirection_stays_one():
    assert not retry_policy(UpstreamRedirected("x")).retry
    assert retry_policy(UpstreamRedirected("x")).fall_back


def test_an_upstream_that_wants_no_second_try_gets_none():
    assert not retry_policy(refused(503, x_should_retry="false")).retry


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "7", "retry-after-ms": "120"}, 0.12),
        ({"retry-after": formatdate(1_790_000_030, usegmt=True)}, 30),
        ({"retry-after": formatdate(1_780_000_000, usegmt=True)}, 0),
        ({"retry-after": "-3"}, 0),
        ({"retry-after": "soon"}, 0),
        ({"retry-after": "nan"}, 0),
        ({"retry-after": "inf"}, 0),
        ({"retry-after": "Fri, 99 Nov 99999999 00:00:00 GMT"}, 0),
        ({"retry-after-ms": "x", "retry-after": "2"}, 2),
    ],
)
def test_how_long_an_upstream_wants_to_be_left_alone(headers, seconds):
    assert retry_after(headers, 1_790_000_000) == pytest.approx(seconds)
