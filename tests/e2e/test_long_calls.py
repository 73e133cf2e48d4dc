"""Long calls: each earlier turn reaches the model exactly once, whatever becomes of the summaries."""

import itertools
from typing import Any

import pytest

from proxy.memory.session import decode
from proxy.memory.stores.store import Key
from tests.e2e.conftest import Address
from tests.long_call import LongCall, config, marks, model, noted, settle, settled, share, tokens
from tests.peers.fake_upstream import FakeUpstream, answer, completion
from tests.proxy_server import ProxyServer, Serve

BUSY = answer({"error": {"message": "Busy"}}, 503)
EMPTY = answer(completion(""))


@pytest.fixture(params=["sqlite", "redis", "memory"])
def url(request: pytest.FixtureRequest, address: Address) -> str:
    return address(request.param)


def segments(proxy: ProxyServer, session: str = "long") -> Any:
    held = proxy.run(proxy.app.memory.store.read(Key("default", session)))  # type: ignore[union-attr]
    return decode(held.blob).summaries


@pytest.mark.parametrize("numbered", [True, False], ids=["numbered", "unnumbered"])
def test_each_earlier_turn_reaches_the_model_once(
    serve: Serve, upstream: FakeUpstream, url: str, numbered: bool
) -> None:
    upstream.script = model()
    proxy = serve(config(20, 8), MEMORY_URL=url)
    call = LongCall(proxy, upstream, numbered=numbered, cut_every=5)
    for _ in range(70):
        call.check(call.turn())
        settle(proxy)
    assert len(segments(proxy)) > 5
    assert max(map(tokens, call.prompts[20:])) < 2 * tokens(call.prompts[20])
    assert share(call.prompts) > 0.7
    assert call.degraded == []


@pytest.mark.parametrize("size", [1, 2, 5, 40, 1000])
def test_it_holds_whatever_the_engine_replays(serve: Serve, upstream: FakeUpstream, size: int) -> None:
    upstream.script = model()
    proxy = serve(config(12, 4))
    for numbered in (True, False):
        call = LongCall(proxy, upstream, numbered=numbered, size=size, session=f"s{numbered}")
        for _ in range(40):
            call.check(call.turn())
            settle(proxy)
        assert len(segments(proxy, call.session)) > 3


def test_past_the_most_summaries_the_oldest_are_merged(serve: Serve, upstream: FakeUpstream) -> None:
    upstream.script = model()
    proxy = serve(config(6, 2).replace("max: 10", "max: 3"))
    call = LongCall(proxy, upstream)
    for _ in range(40):
        call.check(call.turn())
        settle(proxy)
        assert len(segments(proxy)) <= 4
    assert len(call.prompts[-1]) < 12


def test_summaries_that_fail_half_the_time_lose_nothing(serve: Serve, upstream: FakeUpstream) -> None:
    fails = itertools.cycle([True, False])
    upstream.script = model(lambda request: BUSY if next(fails) else noted(request))
    proxy = serve(config(12, 4))
    call = LongCall(proxy, upstream)
    for _ in range(40):
        call.check(call.turn())
        settled(proxy, within=1.5)  # what failed may still be waiting to be tried again
    assert segments(proxy)
    assert not any(one.extractive for one in segments(proxy))


@pytest.mark.parametrize("sick", [EMPTY, BUSY, [600.0]], ids=["empty", "busy", "late"])
def test_without_a_summary_nothing_is_lost_until_a_digest_stands_in(
    serve: Serve, upstream: FakeUpstream, sick: Any
) -> None:
    upstream.script = model(lambda _: sick)
    proxy = serve(config(10, 4))
    call = LongCall(proxy, upstream)
    for _ in range(9):
        call.check(call.turn())
    for _ in range(40):
        call.check(call.turn(), summaries=False)
    assert segments(proxy)
    assert all(one.extractive for one in segments(proxy))
    assert len(call.prompts[-1]) <= 2 * 10 + 3
    assert max(map(tokens, call.prompts[30:])) < 1.5 * max(map(tokens, call.prompts[:30]))
    held = proxy.client.get("/v1/memory/sessions/long").json()["contents"]
    assert len(held) == 2 * 49


def test_a_digest_gives_way_once_a_model_answers(serve: Serve, upstream: FakeUpstream) -> None:
    upstream.script = model(lambda _: BUSY)
    proxy = serve(config(6, 2))
    call = LongCall(proxy, upstream)
    for _ in range(16):
        call.turn()
    assert any(one.extractive for one in segments(proxy))
    upstream.script = model()
    settle(proxy, within=30)
    call.check(call.turn())
    assert not any(one.extractive for one in segments(proxy))


TRIMMED = "      - restore_interrupted: {show: both}\n      - trim_history: {max_tokens: 700}\n"


def test_what_had_to_be_left_out_is_told_and_summarised_at_once(serve: Serve, upstream: FakeUpstream) -> None:
    upstream.script = model()
    text = config(500, 400).replace("      - restore_interrupted: {show: both}\n", TRIMMED)
    proxy = serve(text)
    call = LongCall(proxy, upstream)
    while "trimmed" not in call.degraded:
        assert not segments(proxy) if call.number else True
        prompt = call.turn()
        settle(proxy)
        assert call.number < 60
    call.check(prompt, summaries=False)
    assert segments(proxy)
    call.degraded.clear()
    for _ in range(3):
        call.check(call.turn())
        settle(proxy)
    assert call.degraded == []


def test_a_cut_stands_still_between_compactions(serve: Serve, upstream: FakeUpstream) -> None:
    """Without summaries, messages are left out in big steps, and the prompt grows between them."""
    upstream.script = model(lambda _: BUSY)
    text = config(500, 400).replace("      - restore_interrupted: {show: both}\n", TRIMMED)
    proxy = serve(text.replace("  summaries: {upstream: main, model: notes, max: 10, timeout: 5s}\n", ""))
    call = LongCall(proxy, upstream, numbered=False)
    for _ in range(45):
        call.turn()
        settle(proxy)
    grown = [after[: len(before)] == before for before, after in itertools.pairwise(call.prompts)]
    assert grown.count(False) in range(2, 12)
    assert share(call.prompts) > 0.6


def test_the_same_call_joined_again_is_told_of_the_former_one(serve: Serve, upstream: FakeUpstream) -> None:
    upstream.script = model()
    proxy = serve(config(40, 10))
    call = LongCall(proxy, upstream)
    for _ in range(3):
        call.check(call.turn())
        settle(proxy)
    # The engine begins to count anew, with other words at another time.
    again = LongCall(proxy, upstream, start=1_700_009_000, first=100)
    again.turn()
    settle(proxy)
    assert [one.end for one in segments(proxy)] == [(0, 2)]
    prompt = again.turn()
    assert "u0-2 a0-2" in str(prompt)


@pytest.mark.parametrize("sick", [False, True], ids=["well", "busy"])
def test_until_a_former_call_is_summarised_its_turns_are_told_word_for_word(
    serve: Serve, upstream: FakeUpstream, url: str, sick: bool
) -> None:
    upstream.script = model(lambda request: BUSY if sick else noted(request))
    proxy = serve(config(20, 8), MEMORY_URL=url)
    call = LongCall(proxy, upstream)
    for _ in range(4):
        call.check(call.turn())
        settle(proxy)
    call.start, call.first, call.number = 1_700_009_000, 4, 0  # the engine counts anew, and has no history
    former, call.lines = call.lines, []
    for last in range(4, 7):
        told = marks(call.turn())
        assert max(told.values()) == 1
        later = {("user", last), *((kind, n) for kind in ("user", "answer") for n in range(4, last))}
        assert set(told) == {*marks(former), *later}
