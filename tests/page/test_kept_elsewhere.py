"""A turn that one of several processes keeps, asked for at another."""

import httpx2
import pytest

from tests.page_visit import Visit
from tests.proxy_server import ProxyServer

TURN = "/turns/turn_of_another"


def followed(visit: Visit, path: str = TURN) -> list[httpx2.Response]:
    got = visit.get(path, follow_redirects=True)
    return [*got.history, got]


def test_one_process_alone_says_that_a_turn_is_gone(visit: Visit) -> None:
    (got,) = followed(visit)
    assert got.status_code == 404
    assert "This turn is not kept any more" in got.text


def test_one_of_several_asks_the_others_and_then_says_what_to_do(
    visit: Visit, open_proxy: ProxyServer
) -> None:
    open_proxy.app.process_name = "process 1 of 2, with the turns that it has answered"
    *asked, last = followed(visit)
    assert len(asked) == 18, "browsers follow twenty"
    assert {(got.status_code, got.headers["connection"]) for got in asked} == {(303, "close")}
    assert {got.headers["location"].partition("?")[0] for got in asked} == {TURN}
    assert last.status_code == 404
    assert "None of the processes that answered keeps this turn" in last.text
    assert "choose it again" in last.text


@pytest.mark.parametrize("asked", ["18", "99", "100000", "-1", "x", "", "\u0661"])
def test_whatever_stands_in_an_address_it_comes_to_an_end(
    visit: Visit, open_proxy: ProxyServer, asked: str
) -> None:
    open_proxy.app.process_name = "process 1 of 2, with the turns that it has answered"
    assert len(followed(visit, f"{TURN}?asked={asked}")) == 1


def test_a_turn_that_is_here_is_shown_at_once(visit: Visit, open_proxy: ProxyServer) -> None:
    open_proxy.app.process_name = "process 1 of 2, with the turns that it has answered"
    open_proxy.chat()
    (kept,) = open_proxy.app.traces.failures("default")
    (got,) = followed(visit, f"/turns/{kept}?asked=3")
    assert got.status_code == 200
