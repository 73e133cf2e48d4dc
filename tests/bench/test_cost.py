"""What a turn costs, counted in calls of functions: a number that no busy machine changes."""

import cProfile
import os
import pstats
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.chain import body
from bench.remember import works
from filters.base import Context
from filters.speakable import Speakable
from proxy.settings.build_pipelines import build_pipelines
from proxy.settings.load import load
from proxy.turn import chain, identity, request
from proxy.upstream.body import compose

BUDGETS = {"turn": 650, "known": 310, "after": 360, "delta": 19}
"""A tenth more calls than when they were counted last. Whoever needs more says why.

``known`` and ``after`` are of a window that another process recorded, or this one before its start: one that
goes on from the last one as bytes takes far fewer. They have one way through the merge since 2026-11-27,
which costs 8 microseconds before the first token and 30 behind the answer. ``known`` looks for answers in
pieces and for lines that were forgotten; ``after`` looks the place of each entry up by its identity, since to
search for it took the square of a window.
"""
AGORA = Path(__file__).parents[2] / "config" / "agora.yaml"


def calls(work: Callable[[], object]) -> int:
    work()
    profile = cProfile.Profile()
    profile.enable()
    work()
    profile.disable()
    return pstats.Stats(profile).total_calls


def turn(messages: int) -> Callable[[], object]:
    """What stands between a request and the model, on the shipped chain."""
    pipeline = build_pipelines(load(AGORA, os.environ))["default"]
    target, raw = pipeline.targets[0], body(messages)
    context = Context(now=time.time())

    def work() -> bytes:
        call = request.read_request(raw, {}, {})
        identity.identify(call, pipeline.id_places, "default")
        shown = chain.run(pipeline.filters, call.messages, context, chain.FilterLog())
        return compose(target.provider, call.fields, shown)

    return work


def test_a_turn_of_24_messages_takes_few_calls():
    assert calls(turn(24)) < BUDGETS["turn"]


def test_a_message_more_costs_what_the_one_before_did():
    few, many = calls(turn(24)), calls(turn(480))
    assert many < 20 * few * 1.2


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("work", ["known", "after"])
def test_memory_takes_few_calls(work: str, numbered: bool):
    assert calls(works(12, 12, numbered=numbered)[work]) < BUDGETS[work]


def test_a_plain_delta_is_passed_on_with_few_calls():
    stage, delta = Speakable().open(Context(now=0.0)), {"content": " weather"}
    assert calls(lambda: stage.feed(delta)) < BUDGETS["delta"]
