"""What the log says of an upstream that failed: why, and one thing to look at."""

import pytest

from proxy.errors import CHECK_ADDRESS, UpstreamError, UpstreamRefused, UpstreamTimeout, UpstreamUnreachable


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            UpstreamUnreachable(f"cannot connect to http://gone:9: refused{CHECK_ADDRESS}"),
            "cannot connect to http://gone:9: refused; check upstreams.main.base_url",
        ),
        (
            UpstreamTimeout(f"no connection to http://gone:9 in time (5 s at most){CHECK_ADDRESS}"),
            "no connection to http://gone:9 in time (5 s at most); check upstreams.main.base_url",
        ),
        (
            UpstreamUnreachable("407 on the way to http://gone:9: check the proxy's user name and password"),
            "407 on the way to http://gone:9: check the proxy's user name and password",
        ),
        (
            UpstreamTimeout("m did not send any answer in time; check whether the model is overloaded"),
            (
                "m did not send any answer in time; check whether the model is overloaded; check"
                " upstreams.main.first_token and upstreams.main.total"
            ),
        ),
        (UpstreamRefused(401, b"", {}), "The upstream answered 401; check upstreams.main.api_key"),
    ],
)
def test_the_log_gives_one_advice(error: UpstreamError, reason: str) -> None:
    error.upstream = "main"
    assert error.reason == reason


def test_without_an_upstream_there_is_no_setting() -> None:
    message = f"cannot connect to http://gone:9: refused{CHECK_ADDRESS}"
    assert UpstreamUnreachable(message).reason == message
