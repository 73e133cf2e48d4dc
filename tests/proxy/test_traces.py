"""The ring of kept turns: bounded, separate for each tenant, and erased on request."""

import asyncio
import itertools
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.base import Snapshot
from proxy.memory.align import deletion
from proxy.memory.archive.records import TombstoneKeys, Tombstones
from proxy.memory.archive.statements import SESSION, USER
from proxy.memory.session import Entry, Session
from proxy.memory.stores.store import Key, Owner
from proxy.observe.hour import Hour
from proxy.observe.observation import Observation, TurnReport
from proxy.traces import Retention, Traces
from proxy.turn.identity import Identity
from proxy.turn.state import TurnContent

ALL = Retention(turns=10, content=True)
numbers = itertools.count()
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "Hi"}]}'


def traces_of(retention: Retention = ALL) -> Traces:
    traces = Traces()
    traces.set_retention(retention)
    return traces


def erased(users: dict[str, float], sessions: dict[str, float] | None = None) -> Tombstones:
    """Tombstones of the tenant ``t``."""
    keys, times = TombstoneKeys((b"key",)), {}
    for kind, names in ((USER, users), (SESSION, sessions or {})):
        times |= {keys.digests("t", kind, name)[0]: at for name, at in names.items()}
    return Tombstones("t", keys, times)


def end(
    traces: Traces, *, tenant: str = "t", size: int = len(BODY), outcome: str = "done", **known: Any
) -> str:
    """A turn that ends; its id."""
    known_report = TurnReport(
        id=f"turn_{next(numbers)}",
        tenant=tenant,
        pipeline=known.get("pipeline", "default"),
        session=known.get("session"),
        user=known.get("user"),
        outcome=outcome,
        first_token=known.get("first_token"),
    )
    observation = Observation(known_report)
    observation.timer.begin("recall")
    observation.content, observation.size = content(known.get("headers", {})), size
    for piece in (b"a", b"b"):
        observation.answer.add(piece)
    report = observation.complete()
    traces.add(report, observation)
    traces.publish(report)
    return report.id


def content(headers: Mapping[str, str]) -> TurnContent:
    identity = Identity("t", None, None, background=False)
    return TurnContent(
        headers=headers, query={}, body=BODY, identity=identity, marked=None, now=0.0, memory=Snapshot()
    )


def ids(traces: Traces, tenant: str = "t", session: str | None = None) -> list[str]:
    return [trace.report.id for trace in traces.newest(tenant, session)]


def test_the_newest_are_kept():
    traces = traces_of(Retention(3, content=True))
    ended = [end(traces) for _ in range(5)]
    assert ids(traces) == ended[:1:-1]
    assert traces.find("t", ended[0]) is None
    assert traces.find("t", ended[4]).answer == b"ab"


def test_large_turns_take_the_place_of_more_small_ones_and_of_all_bytes_there_may_be():
    traces = traces_of()
    for _ in range(4):
        end(traces, size=6_000_000)
    assert len(ids(traces)) == 2
    huge = end(traces, size=18_000_000)
    assert traces.find("t", huge).content is None
    assert len(ids(traces)) == 3


def test_without_content_nothing_that_was_said_is_kept():
    traces = traces_of(Retention(3, content=False))
    trace = traces.find("t", end(traces, session="s"))
    assert (trace.content, trace.answer, trace.report.session) == (None, b"", "s")


def test_a_new_setting_holds_for_what_is_kept_already():
    traces = traces_of()
    ended = [end(traces) for _ in range(4)]
    traces.set_retention(Retention(2, content=False))
    assert ids(traces) == ended[:1:-1]
    assert all(trace.content is None and not trace.answer for trace in traces.newest("t"))
    traces.set_retention(Retention())
    assert ids(traces) == []
    end(traces, session="s")
    assert ids(traces) == [] and not traces._unwritten


def test_a_tenant_finds_its_own_alone():
    traces = traces_of()
    mine, other = end(traces), end(traces, tenant="other")
    assert ids(traces) == [mine] and ids(traces, "other") == [other]
    assert traces.find("t", other) is None


def test_turns_before_and_after_are_those_of_the_session_and_the_pipeline():
    traces = traces_of()
    first = end(traces, session="s")
    end(traces, session="other")
    end(traces, session="s", pipeline="side")
    second, third = end(traces, session="s"), end(traces, session="s")
    before, after = traces.neighbours(traces.find("t", second))
    assert (before.report.id, after.report.id) == (first, third)
    assert traces.neighbours(traces.find("t", first))[0] is None
    assert traces.neighbours(traces.find("t", end(traces))) == (None, None)


def test_a_session_or_a_person_is_forgotten_whole():
    traces = traces_of()
    end(traces, session="s", user="ann")
    stays = end(traces, session="other", user="bob")
    also = end(traces, session="other", user="ann")
    foreign = end(traces, tenant="other", session="s", user="ann")
    asyncio.run(traces.erase("t", session="s"))
    assert ids(traces) == [also, stays]
    asyncio.run(traces.erase("t", user="ann"))
    assert ids(traces) == [stays]
    assert ids(traces, "other") == [foreign]


def test_what_came_before_a_burial_goes_and_what_comes_later_stays():
    traces = traces_of()
    end(traces, session="s", user="ann")
    end(traces, session="buried", user="bob")
    stays = end(traces, session="s", user="bob")
    unnamed = end(traces)
    foreign = end(traces, tenant="other", session="s", user="ann")
    now = time.time()
    traces.remove_erased("t", erased(users={"ann": now, "bob": now - 60}, sessions={"buried": now}))
    assert ids(traces) == [unnamed, stays]
    assert ids(traces, "other") == [foreign]
    assert now - 60 < traces.oldest()["t"] <= traces.oldest()["other"] <= now


@pytest.mark.parametrize("keep", [0, 10])
def test_whoever_is_forgotten_leaves_the_feed_too(keep: int):
    traces = traces_of(Retention(keep))
    for user in ("ann", "bob", None):
        end(traces, session=f"of {user}", user=user)
    end(traces, tenant="other", user="ann")
    now = time.time()
    assert traces.oldest()["t"] <= now
    traces.remove_erased("t", erased(users={"ann": now, "bob": now - 60}, sessions={"of None": now}))
    assert [each.user for each in traces.feed.newest("t")] == ["bob"]
    asyncio.run(traces.erase("t", user="bob"))
    assert not list(traces.feed.newest("t"))
    assert [each.user for each in traces.feed.newest("other")] == ["ann"]


@pytest.mark.parametrize("whose", [{"user": "ann"}, {"session": "s"}])
def test_a_turn_that_was_under_way_when_somebody_was_forgotten_is_kept_nowhere(whose: dict[str, str]):
    traces = traces_of()
    late, foreign = (
        TurnReport(id=tenant, tenant=tenant, pipeline="default", session="s", user="ann")
        for tenant in ("t", "other")
    )
    asyncio.run(traces.erase("t", **whose))
    for report in (late, foreign):
        report.outcome = "done"
        traces.add(report, Observation(report))
        traces.publish(report)
    later = end(traces, session="s", user="ann")
    assert ids(traces) == [each.id for each in traces.feed.newest("t")] == [later]
    assert ids(traces, "other") == [each.id for each in traces.feed.newest("other")] == [foreign.id]


def test_forgetting_nobody_forgets_nobody():
    traces = traces_of()
    unnamed = end(traces)
    asyncio.run(traces.erase("t", session="s"))
    asyncio.run(traces.erase("t", user="ann"))
    assert ids(traces) == [unnamed]


def test_when_memory_has_a_turn_is_noted_for_every_turn_that_waited():
    traces = traces_of()
    one, two, other = end(traces, session="s"), end(traces, session="s"), end(traces, session="x")
    traces.session_written(Key("t", "s"), Session())
    assert traces.find("t", one).written_at is not None
    assert traces.find("t", two).written_at is not None
    assert traces.find("t", other).written_at is None


def test_nothing_is_left_of_what_was_let_go():
    traces = traces_of(Retention(2, content=True))
    for i in range(50):
        end(traces, session=f"s{i}")
        if i % 2:
            traces.session_written(Key("t", f"s{i}"), Session())
    assert len(traces._unwritten) <= 2
    assert traces._bytes == sum(trace.size for trace in traces._traces.values())


def test_a_person_in_half_of_many_turns_is_forgotten_in_no_time():
    traces = traces_of(Retention(20_000, content=False))
    for i in range(20_000):
        end(traces, session="s", user="ann" if i % 2 else "bob")
    began = time.thread_time()
    asyncio.run(traces.erase("t", user="ann"))
    assert time.thread_time() - began < 1
    assert {trace.report.user for trace in traces.newest("t")} == {"bob"}
    assert len(ids(traces)) == len(traces._unwritten[Key("t", "s")]) == 10_000


def test_a_turn_that_ends_while_others_are_let_go_of_is_looked_at_too():
    traces = traces_of()
    late = [end(traces, session="s")]
    traces.before_reading(lambda: late.append(end(traces, session="s")) if len(late) < 2 else None)
    asyncio.run(traces.erase("t", session="s"))
    assert ids(traces) == [] and not traces._unwritten


@pytest.mark.parametrize("name", ["authorization", "api-key", "x-api-key", "cookie", "proxy-authorization"])
def test_keys_are_not_kept(name: str):
    traces = traces_of()
    trace = traces.find("t", end(traces, headers={name: "secret", "x-session-id": "s"}))
    assert trace.content.request.headers == {"x-session-id": "s"}


# --- the hour


def report(state: str, first_token: float | None = None, tenant: str = "t") -> TurnReport:
    return TurnReport(tenant=tenant, pipeline="default", outcome=state, first_token=first_token)


def test_a_minute_counts_its_turns_by_how_they_ended():
    hour = Hour()
    for state in ("done", "done", "failed"):
        hour.add(120.0, report(state))
    *before, minute = hour.minutes(125.0, "t")
    assert (minute.start, minute.turns, minute.states) == (120, 3, {"done": 2, "failed": 1})
    assert len(before) == 59 and not any(each.turns for each in before)


@pytest.mark.parametrize("seconds", [0.00005, 0.001, 0.05, 0.4, 3.0, 59.0])
def test_a_first_token_is_told_to_an_eighth(seconds: float):
    hour = Hour()
    hour.add(60.0, report("done", seconds))
    told = hour.minutes(60.0, "t")[-1].first_token.quantile(0.5)
    assert told == pytest.approx(max(seconds, 0.0001), rel=0.125)


def test_the_median_and_the_slowest_are_told_apart():
    hour = Hour()
    for seconds in [0.1] * 90 + [2.0] * 10:
        hour.add(60.0, report("done", seconds))
    minute = hour.minutes(60.0, "t")[-1]
    assert minute.first_token.quantile(0.5) < 0.12 and minute.first_token.quantile(0.95) > 1.7
    assert Hour().minutes(60.0, "t")[-1].first_token.quantile(0.5) is None


def test_what_is_older_than_an_hour_is_gone():
    hour = Hour()
    for i in range(200):
        hour.add(i * 60.0, report("done"))
    assert len(hour._minutes["t"]) == 60
    assert sum(minute.turns for minute in hour.minutes(199 * 60.0 + 1800, "t")) == 30


def test_each_tenant_has_its_own_hour():
    hour = Hour()
    for tenant in ("a", "b", "b"):
        hour.add(60.0, report("done", tenant=tenant))
    assert [hour.minutes(60.0, tenant)[-1].turns for tenant in ("a", "b", "c")] == [1, 2, 0]


@given(st.lists(st.floats(0, 7200), min_size=1, max_size=40))
def test_whatever_the_clock_does_what_came_since_it_was_last_set_back_is_shown(readings: list[float]):
    hour, shown = Hour(), 0
    for before, now in itertools.pairwise([0.0, *readings]):
        hour.add(now, report("done"))
        shown = shown + 1 if now >= before else 1
    if max(readings) - min(readings) < 3540:
        assert sum(minute.turns for minute in hour.minutes(readings[-1], "t")) >= shown
    starts = [minute.start for minute in hour._minutes["t"]]
    assert starts == sorted(set(starts)) and starts[-1] <= readings[-1]


@pytest.mark.parametrize("step", [-1800.0, 0.0, 1800.0])
def test_whoever_is_forgotten_after_the_clock_was_set_is_forgotten(monkeypatch: Any, step: float):
    traces, real = traces_of(), time.time
    end(traces, session="s", user="ann")
    monkeypatch.setattr(time, "time", lambda: real() + step)
    end(traces, session="s", user="bob")
    assert traces.oldest()["t"] <= time.time()
    traces.remove_erased("t", erased(users={"ann": time.time(), "bob": time.time() - 60}))
    assert [trace.report.user for trace in traces.newest("t")] == ["bob"]


# --- what sessions say of their turns


def test_turns_that_show_forgotten_lines_lose_their_words(monkeypatch: pytest.MonkeyPatch):
    traces, pin = traces_of(), {"role": "user", "content": "My pin is 4711."}
    lines = [pin, {"role": "assistant", "content": "Noted."}, {"role": "user", "content": "Hi"}]
    monkeypatch.setitem(globals(), "BODY", msgspec.json.encode({"model": "m", "messages": lines}))
    for session in ("s", "other"):
        end(traces, session=session)
    spoken = [Entry(role="user", turn=0, content=pin["content"], recorded_at=time.time())]
    traces.session_written(Key("t", "s"), deletion.forget_entries(Session(), spoken, now=time.time()))
    words = {trace.report.session: (trace.content is not None, trace.answer) for trace in traces.newest("t")}
    assert words == {"s": (False, b""), "other": (True, b"ab")}


def test_a_user_s_latest_session_is_the_one_that_was_written_last_within_a_minute(
    monkeypatch: pytest.MonkeyPatch,
):
    traces = traces_of()
    for tenant, session, user in (("t", "a", "ann"), ("t", "b", "ann"), ("t", "c", "bob"), ("u", "d", "ann")):
        traces.session_written(Key(tenant, session), Session(user=user))
    assert [traces.latest_session(Owner("t", user)) for user in ("ann", "bob", "eve")] == ["b", "c", None]
    monkeypatch.setattr("proxy.traces._WRITTEN_LATELY", 0.0)
    assert traces.latest_session(Owner("t", "ann")) is None


@pytest.mark.parametrize(
    ("turns", "content", "shown"), [(3, True, True), (3, False, False), (0, True, False)]
)
def test_excerpts_are_for_who_keeps_turns_with_what_was_said(turns: int, content: bool, shown: bool):
    assert Retention(turns, content).with_content is shown
