"""Messages over the budget are summarised at once, in big steps, and never turn by turn."""

from typing import Any

import pytest

from tests.e2e.conftest import Address
from tests.long_call import LongCall, config, is_notes, model, settle
from tests.peers.fake_upstream import FakeUpstream
from tests.proxy_server import Serve

SYSTEM = 76
"""About how many tokens the prompt's own system message takes."""


def trimming(options: str) -> str:
    text = "      - restore_interrupted: {show: both}\n"
    return config(60, 20).replace(text, f"{text}      - trim_history: {{{options}}}\n")


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, address: Address) -> str:
    return address(request.param)


def asked(upstream: FakeUpstream) -> int:
    return sum(map(is_notes, list(upstream.requests)))


def summaries_by_turn(call: LongCall, turns: int) -> list[int]:
    """How many summaries had been bought after each turn."""
    bought = []
    for _ in range(turns):
        call.turn()
        settle(call.proxy)
        bought.append(asked(call.upstream))
    return bought


@pytest.mark.parametrize("options", ["max_tokens: 60", "max_turns: 1", "max_messages: 2"])
def test_a_budget_that_no_summary_makes_room_in_does_not_buy_one_each_turn(
    serve: Serve, upstream: FakeUpstream, url: str, options: str
) -> None:
    upstream.script = model()
    call = LongCall(serve(trimming(options), MEMORY_URL=url), upstream)
    bought = summaries_by_turn(call, 24)
    assert call.degraded.count("trimmed") > 12
    assert bought[2] == 1, "the first time it is due at once"
    assert 4 <= bought[-1] <= 8


@pytest.mark.parametrize(("most", "most_bought"), [(400, 20), (700, 8)])
def test_where_a_budget_holds_some_turns_summaries_come_before_anything_is_left_out_again(
    serve: Serve, upstream: FakeUpstream, most: int, most_bought: int
) -> None:
    upstream.script = model()
    call = LongCall(serve(trimming(f"max_tokens: {most}")), upstream)
    for _ in range(40):
        before = asked(upstream), call.degraded.count("trimmed")
        call.turn()
        settle(call.proxy)
        after = asked(upstream), call.degraded.count("trimmed")
        assert after[1] == before[1] or after[0] > before[0], "what was left out is summarised at once"
    assert 2 <= asked(upstream) <= most_bought


def test_a_turn_that_had_room_again_makes_nothing_due(serve: Serve, upstream: FakeUpstream) -> None:
    upstream.script = model()
    call = LongCall(serve(trimming("max_tokens: 900")), upstream)
    for _ in range(3):
        call.turn()
    settle(call.proxy)
    big: Any = {"role": "system", "content": "A document that is put in once. " * 150}
    got = call.proxy.chat([big, *call.lines], headers={"X-Session-Id": "long"})
    assert "trimmed" in got.headers.get_list("x-turnkeeper-degraded")
    settle(call.proxy)
    before = asked(upstream)
    assert before == 1
    bought = summaries_by_turn(call, 8)
    assert bought[-1] == before
