"""A model's count of tokens corrects our estimate, and seldom moves a cut."""

import msgspec
import pytest

from filters.base import Context, Snapshot
from filters.message import Message
from filters.trim_history import TrimHistory
from proxy.memory.compaction import SessionLimits, next_plan
from proxy.memory.session import Entry, Session
from proxy.memory.token_scale import Scales, estimate_tokens, with_scale


def test_a_models_scale_is_learned_from_its_counts():
    scales = Scales()
    assert scales.learn("m", 1000, 1300) == pytest.approx(1.3)
    assert scales.learn("m", 1000, 1100) == pytest.approx(1.26)
    assert scales.learn("other", 1000, 900) == pytest.approx(0.9)


@pytest.mark.parametrize(("guess", "counted"), [(50, 60), (0, 10), (1000, 5), (1000, 90_000)])
def test_what_cannot_be_teaches_nothing(guess, counted):
    scales = Scales()
    assert scales.learn("m", guess, counted) is None
    scales.learn("m", 1000, 1200)
    assert scales.learn("m", guess, counted) == pytest.approx(1.2)


def test_a_session_keeps_its_scale_while_it_is_near():
    session = with_scale(Session(), 1.204)
    assert session.scale == 1.2
    assert with_scale(session, 1.29) is session
    assert with_scale(session, 1.4).scale == 1.4
    assert with_scale(session, None) is session


def test_tools_count_and_pictures_teach_nothing():
    said = [Message(role="user", content="a" * 46)]
    assert estimate_tokens(said, b"") == 14
    assert estimate_tokens(said, b"x" * 46) == 24
    assert estimate_tokens([*said, Message(role="user", content=[{"type": "image_url"}])], b"") == 0


def test_budgets_are_the_models_own_tokens():
    said = [Message(role="user", content="a" * 46) for _ in range(20)]
    step = TrimHistory(max_tokens=280)
    assert len(step.apply(said, Context(now=0.0))) == 20
    assert len(step.apply(said, Context(now=0.0, memory=Snapshot(scale=1.5)))) < 20
    session = Session(entries=tuple(Entry(role="user", turn=n, content="a" * 46) for n in range(20)))
    window = SessionLimits(max_messages=100, keep_messages=5, max_tokens=280, summaries=3)
    assert next_plan(session, window) is None
    assert next_plan(msgspec.structs.replace(session, scale=1.5), window)


def test_after_a_models_first_turns_few_are_worth_the_trouble():
    scales, told = Scales(), 0
    for _ in range(80):
        if scales.wants_sample("m"):
            told += 1
            scales.learn("m", 1000, 1300)
        else:
            assert scales.learn("m") == pytest.approx(1.3)
    assert 8 <= told < 20
    assert scales.wants_sample("other") and scales.learn("other") is None


def test_a_model_that_counts_something_else_is_seldom_looked_at_and_may_yet_be_learned():
    scales, told = Scales(), 0
    for _ in range(80):
        if scales.wants_sample("m"):
            told += 1
            assert scales.learn("m", 3000, 800) is None
        else:
            assert scales.learn("m") is None
    assert 8 <= told < 20
    assert scales.learn("m", 1000, 1300) == pytest.approx(1.3)
    assert scales.learn("m", 1000, 1100) == pytest.approx(1.26)
