"""A breaker, by its laws: whatever has happened, it opens late, probes seldom and recovers soon."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from proxy.breaker import Breaker

RECOVERY = 30
PROBES_APART = 4
EVENTS = st.lists(
    st.one_of(st.sampled_from(["admit", "begun", "succeeded", "failed"]), st.floats(0.01, 20)), max_size=60
)


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def after(events: list[object]) -> tuple[Breaker, Time]:
    time = Time()
    breaker = Breaker(time)
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
            breaker.failed()
            assert breaker.state == "closed"
            assert breaker.admit()
        breaker.begun()
        breaker.succeeded()


def test_five_failures_in_a_row_open_it() -> None:
    breaker, time = after(["failed"] * 5)
    assert breaker.state == "open"
    assert not breaker.admit()
    time.now += PROBES_APART
    assert breaker.state == "half_open"
    assert breaker.admit()
    assert not breaker.admit()


@given(EVENTS, st.integers(0, 8))
def test_a_model_that_is_well_again_is_found_out_in_time(events: list[object], probes: int) -> None:
    breaker, time = after([*events, *["failed"] * 5, *[100.0, "admit", "failed"] * probes])
    end = time.now + RECOVERY - 1
    while breaker.state != "closed":
        time.now += 0.5
        assert time.now < end
        if breaker.admit():
            breaker.begun()
            breaker.succeeded()
    assert breaker.admit()


@given(EVENTS, st.floats(0.05, 3))
def test_a_dead_model_costs_few_callers_a_try(events: list[object], pace: float) -> None:
    breaker, time = after([*events, *["failed"] * 5])
    probes = []
    for _ in range(int(120 / pace)):
        time.now += pace
        if breaker.admit():
            probes.append(time.now)
            breaker.failed()
    assert all(later - sooner >= PROBES_APART for sooner, later in pairwise(probes))
    assert len(probes) <= 12


@given(EVENTS)
def test_a_probe_that_never_ends_holds_up_no_other(events: list[object]) -> None:
    breaker, time = after([*events, *["failed"] * 5, 20.0])
    assert breaker.admit()
    time.now += PROBES_APART
    assert breaker.admit()


def test_after_a_probe_one_failure_opens_it_again() -> None:
    breaker, time = after(["failed"] * 5 + [4.0, "admit", "begun"])
    assert breaker.state == "closed"
    breaker.failed()
    assert breaker.state == "open"
    time.now += PROBES_APART
    assert breaker.state == "open", "pauses grow"


def test_what_began_before_it_opened_decides_nothing() -> None:
    breaker, time = after(["failed"] * 5)
    breaker.succeeded()
    assert breaker.state == "open"
    time.now += 3
    breaker.failed()
    time.now += 1
    assert breaker.state == "half_open"
