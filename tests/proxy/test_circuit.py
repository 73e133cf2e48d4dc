"""A circuit breaker by its laws: whatever has happened, it opens late, probes seldom and recovers soon."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.circuit import Backoff, CircuitBreaker, Outage

RECOVERY = 30
PROBES_APART = 4
EVENTS = st.lists(
    st.one_of(
        st.sampled_from(["admit", "record_answer", "record_success", "record_failure"]), st.floats(0.01, 20)
    ),
    max_size=60,
)


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def after(events: list[object]) -> tuple[CircuitBreaker, Time]:
    time = Time()
    breaker = CircuitBreaker(Backoff(shortest=4, longest=16), threshold=5, clock=time)
    for event in events:
        if isinstance(event, float):
            time.now += event
        else:
            getattr(breaker, str(event))()
    return breaker, time


@given(st.lists(st.integers(0, 4), max_size=10))
def test_it_stays_closed_while_no_five_failures_come_in_a_row(runs: list[int]) -> None:
    breaker, _ = after([])
    for failures in runs:
        for _ in range(failures):
            breaker.record_failure()
            assert breaker.state == "closed"
            assert breaker.admit()
        breaker.record_answer()
        breaker.record_success()


def test_five_failures_in_a_row_open_it() -> None:
    breaker, time = after(["record_failure"] * 5)
    assert breaker.state == "open"
    assert not breaker.admit()
    time.now += PROBES_APART
    assert breaker.state == "half_open"
    assert breaker.admit()
    assert not breaker.admit()


@given(EVENTS, st.integers(0, 8))
def test_a_model_that_is_well_again_is_found_out_in_time(events: list[object], probes: int) -> None:
    breaker, time = after([*events, *["record_failure"] * 5, *[100.0, "admit", "record_failure"] * probes])
    end = time.now + RECOVERY - 1
    while breaker.state != "closed":
        time.now += 0.5
        assert time.now < end
        if breaker.admit():
            breaker.record_answer()
            breaker.record_success()
    assert breaker.admit()


@given(EVENTS, st.floats(0.05, 3))
def test_a_dead_model_costs_few_callers_a_try(events: list[object], pace: float) -> None:
    breaker, time = after([*events, *["record_failure"] * 5])
    probes = []
    for _ in range(int(120 / pace)):
        time.now += pace
        if breaker.admit():
            probes.append(time.now)
            breaker.record_failure()
    assert all(later - sooner >= PROBES_APART for sooner, later in pairwise(probes))
    assert len(probes) <= 12


@given(EVENTS)
def test_a_probe_that_never_ends_holds_up_no_other(events: list[object]) -> None:
    breaker, time = after([*events, *["record_failure"] * 5, 20.0])
    assert breaker.admit()
    time.now += PROBES_APART
    assert breaker.admit()


def test_after_a_probe_one_failure_opens_it_again() -> None:
    breaker, time = after(["record_failure"] * 5 + [4.0, "admit", "record_answer"])
    assert breaker.state == "closed"
    breaker.record_failure()
    assert breaker.state == "open"
    time.now += PROBES_APART
    assert breaker.state == "open", "pauses grow"


def test_what_began_before_it_opened_decides_nothing() -> None:
    breaker, time = after(["record_failure"] * 5)
    breaker.record_success()
    assert breaker.state == "open"
    time.now += 3
    breaker.record_failure()
    time.now += 1
    assert breaker.state == "half_open"


def test_a_change_is_reported_once() -> None:
    changes: list[bool] = []
    time = Time()
    backoff = Backoff(shortest=1, longest=4)
    breaker = CircuitBreaker(backoff, threshold=1, clock=time, on_change=changes.append)
    for _ in range(3):
        breaker.record_failure()
        time.now += 10
        assert breaker.admit()
    breaker.record_answer()
    assert changes == [True], "it is on probation"
    breaker.record_success()
    breaker.record_success()
    assert changes == [True, False]


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(shortest=0.1, longest=1.0)
    assert [backoff.pause(failures) for failures in range(1, 7)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff.pause(100_000) == 1.0


@given(st.integers(1, 100), st.floats(0, 1), st.floats(0, 1000))
def test_a_pause_stays_within_its_bounds(failures: int, jitter: float, retry_after: float) -> None:
    whole = Backoff(shortest=0.5, longest=30).pause(failures)
    pause = Backoff(shortest=0.5, longest=30, jitter=jitter).pause(failures, retry_after=retry_after)
    assert max(whole * (1 - jitter), min(retry_after, 30)) - 1e-9 <= pause <= max(whole, min(retry_after, 30))


def test_an_outage_is_logged_when_it_begins_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage("It fails: %s", "It works again (%d)")
    outage.end(0)
    outage.begin("first")
    outage.begin("second")
    assert outage.active
    outage.end(7)
    outage.end(8)
    assert not outage.active
    assert [record.getMessage() for record in caplog.records] == ["It fails: first", "It works again (7)"]


def test_a_call_that_cannot_go_elsewhere_passes_until_failures_have_lasted() -> None:
    breaker, time = after(["record_failure", 2.0, *["record_failure"] * 4])
    assert not breaker.admit()
    for _ in range(3):
        assert breaker.admit_last(probe_every=1.0, grace=3.0)
        breaker.record_failure()
    time.now += 1.5
    assert breaker.admit_last(probe_every=1.0, grace=3.0), "a probe"
    assert not breaker.admit_last(probe_every=1.0, grace=3.0)
    breaker.record_answer()
    breaker.record_success()
    for _ in range(5):
        breaker.record_failure()
    assert breaker.state == "open"
    assert breaker.admit_last(probe_every=1.0, grace=3.0), "they count from the last success"
