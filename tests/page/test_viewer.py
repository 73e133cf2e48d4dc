"""The page's users: what a cookie contains, how long it lasts, and the token in each form."""

import time

import pytest

from proxy.admission.gate import Keys
from proxy.errors import Forbidden
from proxy.page.viewer import LASTS, Viewer, check_form, identify_viewer, sign

KEYS = Keys.parse("one:secret-1,two:secret-2,one:secret-3:chat")
NOBODY = Keys()


def shown(cookie: str, keys: Keys = KEYS) -> Viewer:
    return identify_viewer({"cookie": cookie}, keys)


def cookie_of(place: int, age: float = 0.0) -> str:
    return f"turnkeeper={sign(KEYS.entries[place], now=time.time() - age)}"


def test_a_signed_cookie_says_the_tenant_and_needs_no_other():
    who = shown(cookie_of(1))
    assert (who.tenant, who.nonce, who.keyed) == ("two", None, True)


@pytest.mark.parametrize(("age", "tenant"), [(0, "one"), (LASTS - 60, "one"), (LASTS + 1, None)])
def test_it_lasts_half_a_day(age: float, tenant: str | None):
    assert shown(cookie_of(0, age)).tenant == tenant


def test_a_key_that_may_only_chat_signs_nothing_that_counts():
    assert shown(cookie_of(2)).tenant is None


def test_no_two_visits_have_one_cookie_or_one_token():
    one, other = cookie_of(0), cookie_of(0)
    assert one != other
    assert shown(one).token != shown(other).token


def test_without_a_cookie_one_is_given_and_then_known():
    first = shown("")
    assert first.nonce and first.tenant is None
    again = shown(f"turnkeeper_visit={first.nonce}")
    assert (again.nonce, again.token) == (None, first.token)


def test_without_keys_everybody_here_is_the_default_tenant():
    assert shown("", NOBODY).tenant == "default"


@pytest.mark.parametrize("nonce", ["", "x", "0" * 31, "0" * 33, "g" * 32, "A" * 32])
def test_a_nonce_is_one_of_ours_or_none(nonce: str):
    assert shown(f"turnkeeper_visit={nonce}").nonce


def test_a_form_from_a_page_of_ours_passes():
    who = shown(cookie_of(0))
    check_form(who, {}, who.token)
    check_form(who, {"sec-fetch-site": "same-origin"}, who.token)


@pytest.mark.parametrize(
    ("cookie", "headers", "token"),
    [
        (cookie_of(0), {}, ""),
        (cookie_of(0), {}, "é"),
        (cookie_of(0), {"sec-fetch-site": "cross-site"}, None),
        (cookie_of(0), {"sec-fetch-site": "same-site"}, None),
        ("", {}, None),
    ],
)
def test_any_other_does_not(cookie: str, headers: dict[str, str], token: str | None):
    who = shown(cookie)
    with pytest.raises(Forbidden):
        check_form(who, headers, who.token if token is None else token)
