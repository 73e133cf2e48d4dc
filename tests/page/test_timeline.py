"""A call as a time line: whatever the clocks say, speech does not overlap and time goes forward."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.memory.session import Entry
from proxy.page import timeline
from proxy.page.timeline import SECOND, TurnMark, call_timeline, lines_of, turns_of_lines

NOW = 1_795_692_400.0
clocks = st.floats(NOW - 100, NOW + 100)
entries = st.lists(
    st.builds(
        Entry,
        role=st.sampled_from(["user", "assistant", "tool", "system"]),
        turn=st.integers(0, 5),
        call=st.integers(0, 1),
        content=st.sampled_from(["", "Hi", "words " * 40, "你好吗"]),
        timestamp=st.none() | clocks | clocks.map(lambda at: int(at * 1000)),
        original=st.none() | st.just("Hi words words that nobody heard"),
        interrupted=st.booleans(),
        interrupt_timestamp=st.none() | clocks.map(lambda at: int(at * 1000)),
        recorded_at=clocks,
    ),
    max_size=12,
)
marks = st.lists(
    st.builds(
        TurnMark,
        id=st.uuids().map(str),
        at=clocks,
        state=st.just("done"),
        first_token=st.none() | st.floats(0, 5),
        overhead=st.floats(0, 5),
        written_at=st.none() | clocks,
    ),
    max_size=4,
)


@given(entries, marks)
def test_nobody_speaks_twice_at_once(entries: list[Entry], marks: list[TurnMark]) -> None:
    lines = lines_of((), entries, 0)
    drawn = call_timeline(lines, turns_of_lines(lines, marks))
    first = max((line.position for line in lines if line.begins_call), default=0)
    spoken = [line for line in lines if line.position >= first and line.role != "system"]
    assert (drawn is None) == (not spoken)
    if drawn is None:
        return
    assert [bar.position for bar in drawn.bars] == [line.position for line in spoken]
    starts = [bar.x for bar in drawn.bars]
    assert starts == sorted(starts)
    for tracks in ({"caller"}, {"agent", "tool"}):
        bars = [bar for bar in drawn.bars if bar.track in tracks]
        for one, other in pairwise(bars):
            # What would be shorter than can be seen is drawn a little longer.
            assert one.x + one.width <= max(other.x, one.x + 0.4 * SECOND) + 0.2
    assert all(bar.width > 0 and bar.unheard >= 0 and bar.x + bar.width <= drawn.width for bar in drawn.bars)
    assert all(0 <= mark.x <= drawn.width for mark in drawn.ticks)


def test_of_a_long_text_its_beginning_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = list[str]()

    def width(letter: str) -> str:
        looked_at.append(letter)
        return "N"

    monkeypatch.setattr(timeline, "east_asian_width", width)
    texts = ["x" * 900, "x" * 250_000]
    bars = [bar for text in texts for bar in drawn(entry("user", 0, text)).bars]
    assert bars[0].width == bars[1].width
    assert len(looked_at) < 5_000


def entry(role: str, at: float, text: str = "words " * 5, **known) -> Entry:
    return Entry(role=role, turn=0, content=text, timestamp=NOW + at, recorded_at=NOW + at, **known)


def drawn(*entries: Entry, marks: tuple[TurnMark, ...] = ()):
    lines = lines_of((), entries, 0)
    of_call = call_timeline(lines, turns_of_lines(lines, marks))
    assert of_call is not None
    return of_call


def test_an_answer_begins_with_its_first_token_and_shows_our_share() -> None:
    mark = TurnMark(id="t", at=NOW + 5, state="done", first_token=0.5, overhead=0.1, written_at=NOW + 6)
    timeline = drawn(entry("user", 5), entry("assistant", 5), marks=(mark,))
    caller, agent = timeline.bars
    (wait,) = timeline.waits
    assert wait.x == caller.x + caller.width
    assert agent.x == round(wait.x + 0.5 * SECOND, 1) and wait.own == 0.1 * SECOND
    assert [write.x for write in timeline.writes] == [wait.x + SECOND]


def test_a_barge_in_cuts_the_answer_where_it_was_heard() -> None:
    cut = entry("assistant", 5, "I can", original="I can change that for you", interrupted=True)
    _, whole = drawn(entry("user", 5), entry("assistant", 5, "words " * 30)).bars
    _, answer, words = drawn(entry("user", 5), cut, entry("user", 7)).bars
    assert answer.interrupted and answer.width < whole.width and answer.unheard > 0
    assert answer.x + answer.width <= max(words.x, answer.x + 0.4 * SECOND)


def test_a_long_silence_is_drawn_short_and_named() -> None:
    for seconds, name in ((60, "58.0 s"), (3_700, "1 h 1 min"), (10_000_000, "115 d 17 h")):
        timeline = drawn(entry("user", 0), entry("user", seconds))
        (silence,) = timeline.silences
        assert silence.text == name
        assert timeline.width < 12 * SECOND
        assert len(timeline.ticks) < 6


@pytest.mark.parametrize("behind", [-7200.0, 7200.0, 90_000_000.0])
def test_a_platform_s_clock_that_is_wrong_makes_no_silence(behind: float) -> None:
    def an_entry(role: str, at: float, recorded: float, **more: Any) -> Entry:
        entry = Entry(role=role, turn=0, content="Hello there", recorded_at=NOW + recorded, **more)
        return msgspec.structs.replace(entry, timestamp=NOW + at - behind)

    cut = {"original": "Hello there, friend", "interrupted": True, "interrupt_timestamp": NOW + 1.2 - behind}
    window = [an_entry("user", 0, 20), an_entry("assistant", 0.5, 20, **cut), an_entry("user", 20, 20)]
    answer = Entry(role="assistant", turn=0, content="Hello", recorded_at=NOW + 20)
    mark = TurnMark(id="t", at=NOW + 20, state="done", first_token=0.3, overhead=0.0, written_at=None)
    timeline = drawn(*window, answer, marks=(mark,))
    assert [silence.text for silence in timeline.silences] == ["17.7 s"]
    assert timeline.bars[1].interrupted and timeline.bars[1].x < timeline.bars[2].x < timeline.bars[3].x


def test_each_line_leads_to_the_turn_that_brought_it() -> None:
    """A first request may bring lines that were said before."""
    lines = lines_of((), [entry("assistant", 0), entry("user", 0), entry("assistant", 0.1)], 0)
    mark = TurnMark(id="t", at=NOW + 0.05, state="done", first_token=None, overhead=0.0, written_at=None)
    assert turns_of_lines(lines, [mark]) == {1: mark, 2: mark}
    late = TurnMark(id="u", at=NOW + 9, state="failed", first_token=None, overhead=0.0, written_at=None)
    assert turns_of_lines(lines, [late]) == {}


def test_labels_are_whole_or_not_there() -> None:
    conversation = [
        ("user", "Hi."),
        ("assistant", "Hello there, how can I help you with all that today?"),
    ] * 4
    entries = [
        Entry(role=role, turn=i // 2, call=0, content=text, recorded_at=NOW + i // 2)
        for i, (role, text) in enumerate(conversation)
    ]
    marks = [
        TurnMark(id=str(i), at=NOW + i, state="done", first_token=0.45, overhead=0.001, written_at=None)
        for i in range(4)
    ]
    lines = lines_of((), entries, 0)
    drawn = call_timeline(lines, turns_of_lines(lines, marks))
    assert drawn is not None
    assert len(drawn.waits) == 4 and not drawn.waits[0].label and drawn.waits[-1].label
    ends = [*(wait.x for wait in drawn.waits[1:]), drawn.width]
    for wait, end in zip(drawn.waits, ends, strict=True):
        assert not wait.label or wait.x + wait.width + 6 * len(wait.label) <= end
    for tick in drawn.ticks:
        assert not tick.text or tick.x + 6 * len(tick.text) <= drawn.width
    for bar in drawn.bars:
        whole = dict(enumerate(text for _, text in conversation))[bar.position]
        assert 6 * len(bar.text) <= bar.width
        assert bar.text in {whole, ""} or (bar.text.endswith("…") and whole.startswith(bar.text[:-1]))
