"""The live feed: in order, for its own tenant, and without delaying turns."""

import asyncio
import time
from typing import Any

import msgspec
import pytest

from proxy.observe.feed import Event, Feed
from proxy.observe.observation import AnswerCopy, Excerpt, Observation, TurnReport


def report(tenant: str = "acme", session: str = "s", **known: Any):
    fields = {"tenant": tenant, "pipeline": "default", "session": session, "outcome": "done"} | known
    return TurnReport(request="req_1", **fields)


async def collect(feed: Feed, tenant: str, seen: list[Event]) -> None:
    async for event in feed.subscribe(tenant):
        seen.append(event)  # noqa: PERF401 - what was seen counts, however early it ends


async def ticks() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.anyio
async def test_an_onlooker_sees_what_was_and_what_comes() -> None:
    feed, seen = Feed(), []
    feed.publish(report(session="before"))
    looking = asyncio.create_task(collect(feed, "acme", seen))
    await ticks()
    assert feed.subscribers
    feed.publish(report(session="after"))
    await ticks()
    assert [event.session for event in seen] == ["before", "after"]
    feed.close()
    await looking
    assert not feed.subscribers


@pytest.mark.anyio
async def test_nobody_sees_another_tenant_s_turns() -> None:
    feed, seen = Feed(), []
    feed.publish(report("other"))
    looking = asyncio.create_task(collect(feed, "acme", seen))
    await ticks()
    feed.publish(report("other"))
    feed.publish(report("acme"))
    feed.close()
    await looking
    assert len(seen) == 1


@pytest.mark.anyio
async def test_who_falls_behind_misses_the_oldest_and_the_end_comes_all_the_same() -> None:
    feed, seen = Feed(), []
    turns = feed.subscribe("acme")
    feed.publish(report(session="first"))
    seen.append(await anext(turns))
    for number in range(2000):
        feed.publish(report(session=str(number)))
    feed.close()
    seen.extend([event async for event in turns])
    assert len(seen) <= 501
    assert seen[-1].session == "1999"


@pytest.mark.anyio
async def test_what_is_kept_is_bounded() -> None:
    feed = Feed()
    for number in range(1000):
        feed.publish(report(session=str(number)))
    turns = feed.subscribe("acme")
    kept = [await anext(turns) for _ in range(200)]
    await turns.aclose()
    assert kept[0].session == "800"
    assert kept[-1].session == "999"


@pytest.mark.anyio
async def test_what_is_let_go_of_is_shown_to_nobody_any_more() -> None:
    feed, seen = Feed(), []
    feed.publish(report(user="ann"))
    feed.publish(report("other", user="ann"))
    slow = feed.subscribe("acme")
    assert (await anext(slow)).user == "ann"
    for name in ("ann", "bob"):
        feed.publish(report(user=name))
    feed.remove("acme", lambda one, _: one.user == "ann")
    feed.close()
    seen.extend([event async for event in slow])
    assert [event.user for event in seen] == ["bob"]
    assert [each.user for each in feed.newest("acme")] == ["bob"]
    assert [each.user for each in feed.newest("other")] == ["ann"]


def spoken(session: str = "s", tenant: str = "acme"):
    return msgspec.structs.replace(report(tenant, session), excerpt=Excerpt("Hi", "Hello"))


def with_words(feed: Feed, tenant: str = "acme") -> list[bool]:
    """Of each turn, the newest first, whether its words are there."""
    return [turn.excerpt is not None for turn in feed.newest(tenant)]


@pytest.mark.parametrize("first", [True, False])
def test_only_the_newest_turns_have_words(first: bool) -> None:
    feed = Feed()
    if first:
        feed.keep_excerpts(2)
    for _ in range(4):
        feed.publish(spoken())
    if not first:
        feed.keep_excerpts(2)
    assert with_words(feed) == [True, True, False, False]
    feed.keep_excerpts(0)
    feed.publish(spoken())
    assert with_words(feed) == [False] * 5


def test_the_words_of_a_session_can_go_and_its_turns_stay() -> None:
    feed = Feed()
    for turn in (spoken("a"), spoken("b"), spoken("a", "other")):
        feed.publish(turn)
    feed.remove_excerpts("acme", "a")
    assert with_words(feed) == [True, False] and with_words(feed, "other") == [True]


def test_words_are_added_to_the_newest_turns_alone_and_not_where_they_were_removed() -> None:
    feed = Feed()
    feed.keep_excerpts(3)
    for session in ("old", "a", "b", "c"):
        feed.publish(report(session=session))
    feed.remove_excerpts("acme", "b")
    feed.add_excerpts(lambda turn: None if turn.session == "a" else Excerpt("Hi", "Hello"))
    assert with_words(feed) == [True, False, False, False]
    feed.publish(report(session="d"))
    feed.add_excerpts(lambda turn: Excerpt("Hi", turn.session or ""))
    assert with_words(feed) == [True, True, False, False, False]
    assert next(feed.newest("acme")).excerpt == Excerpt("Hi", "d")


@pytest.mark.anyio
async def test_a_turn_is_an_event_from_its_first_token_on() -> None:
    feed = Feed()
    for known in ({"outcome": None}, {"outcome": None, "first_token": 0.1}, {"outcome": "done"}):
        feed.publish(report(**known))
    turns, events = feed.reports("acme"), feed.subscribe("acme")
    assert (await anext(turns)).outcome == "done"
    assert (await anext(events)).state == "done"
    for known in ({"outcome": None}, {"outcome": None, "first_token": 0.1}):
        feed.publish(report(**known))
    assert [(await anext(turns)).first_token for _ in range(2)] == [None, 0.1]
    assert (await anext(events)).first_token_ms == 100.0
    await turns.aclose()
    await events.aclose()
    assert not feed.subscribers


@pytest.mark.parametrize("step", [-1800.0, 0.0, 1800.0])
def test_a_turn_arrived_before_now_whatever_the_clock_does(
    monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    feed, real = Feed(), time.time
    feed.publish(report())
    monkeypatch.setattr(time, "time", lambda: real() + step)
    (oldest,) = feed.oldest().values()
    assert oldest <= time.time()


@pytest.mark.parametrize(
    ("known", "state"),
    [
        ({"outcome": None}, "streaming"),
        ({"outcome": "done"}, "done"),
        ({"outcome": "done", "degraded": ["memory"]}, "degraded"),
        ({"outcome": "failed"}, "failed"),
        ({"outcome": "failed", "first_token": 0.1}, "failed"),
        ({"outcome": "hangup"}, "cancelled"),
        ({"outcome": "superseded"}, "cancelled"),
        ({"outcome": "hangup", "first_token": 0.1}, "interrupted"),
        ({"outcome": "superseded", "first_token": 0.1}, "interrupted"),
    ],
)
def test_a_state_says_where_a_turn_stands(known: dict[str, Any], state: str) -> None:
    assert Event.of(report(**known)).state == state


def test_an_event_holds_no_words() -> None:
    answer = AnswerCopy()
    answer.add(b'data: {"choices":[{"delta":{"content":"a secret"}}]}\n\n')
    assert b"secret" not in msgspec.json.encode(Event.of(Observation(report(), answer=answer).complete()))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
