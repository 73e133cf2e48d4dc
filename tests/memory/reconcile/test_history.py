"""A history that an engine tells changes the life that it tells of, and no other."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.message import Message
from proxy.memory.merge.calls import Agent, apply_history, history_messages
from proxy.memory.session import Agents, Entry, Session
from tests.memory.call import missing, reconcile

T = 1_790_000_000.0
A = Agent(id="a", start=T, stop=T + 100)


def entry(number: int, role: str, text: str, *, counted: int | None, life: int = 0, **more: Any) -> Entry:
    engine = None if counted is None else number + counted
    at = T + 10 * number + (role == "assistant") + 1000 * life
    return Entry(role=role, turn=number, call=life, turn_id=engine, content=text, recorded_at=at, **more)


def talk(turns: int, *, counted: int | None, life: int = 0, what: str = "apples") -> tuple[Entry, ...]:
    lines = [(n, role, unique_words(role, n, what)) for n in range(turns) for role in ("user", "assistant")]
    return tuple(entry(n, role, text, counted=counted, life=life) for n, role, text in lines)


def unique_words(role: str, number: int, what: str) -> str:
    """Words that no other line has."""
    return " ".join(f"{what}{word}{number}{role[0]}" for word in "klmn")


def session(*talks: tuple[Entry, ...]) -> Session:
    last = talks[-1][-1]
    agents = Agents((), {name: life for life, name in enumerate("abc"[: len(talks)])})
    entries = tuple(line for one in talks for line in one)
    return Session(entries=entries, call=last.call, next_turn=last.turn + 1, created=T, agents=agents)


def telling(entries: tuple[Entry, ...], *, counted: int | None) -> list[dict[str, Any]]:
    return [
        {"role": e.role, "content": e.text, "speech_start_ms": int(1000 * e.recorded_at)}
        | ({} if counted is None else {"turn_id": e.turn + counted})
        for e in entries
    ]


def after(held: Session, contents: list[dict[str, Any]]) -> Session:
    return apply_history(held, A, history_messages(contents), now=T + 3000)[0]


def words(held: Session) -> list[tuple[Any, ...]]:
    return [(*e.turn_ref, e.turn_id, e.role, e.text, e.interrupted) for e in held.entries]


def of(held: Session, life: int) -> list[Entry]:
    return [entry for entry in held.entries if entry.call == life]


counts = st.sampled_from([None, 0, 1])


@st.composite
def notices(draw: st.DrawFn) -> tuple[Session, list[dict[str, Any]]]:
    """A session of one talk or two, and what an engine makes of the first of them."""
    counted = draw(counts)
    own = (
        entry(0, "assistant", "Hello, this is the clinic.", counted=counted),
        *talk(4, counted=counted)[1:],
    )
    own = own[: draw(st.integers(1, len(own)))]
    own = tuple(
        msgspec.structs.replace(e, pending=e.role == "assistant" and draw(st.booleans())) for e in own
    )
    later = [talk(3, counted=counted, life=1, what="plums")] if draw(st.booleans()) else []
    contents = telling(own, counted=draw(counts))
    start = draw(st.integers(0, len(contents) - 1))
    contents = contents[start : draw(st.integers(start + 1, len(contents)))]
    for how in draw(st.lists(st.sampled_from(["drop", "reword", "add"]), max_size=3)):
        contents = changed(contents, how, draw(st.integers(0, 9)))
    return session(own, *later), contents


def changed(contents: list[dict[str, Any]], how: str, where: int) -> list[dict[str, Any]]:
    place = where % len(contents)
    line = contents[place]
    if how == "reword":
        put = [{**line, "content": f"No, {line['content']}"}]
    else:
        added = {**line, "content": f"Nobody heard this, number {len(contents)}."}
        put = [line, added] if how == "add" else []
    return [*contents[:place], *put, *contents[place + 1 :]] or contents


@given(notices())
def test_a_notice_keeps_the_order_and_other_lives_and_doubles_no_line(notice) -> None:
    held, contents = notice
    most = Counter(e.text for e in held.entries) | Counter(line["content"] for line in contents)
    found = held
    for _ in range(2):  # an engine may tell it twice
        found = after(found, contents)
        places = [e.turn_ref for e in found.entries]
        assert places == sorted(places)
        assert {e.call for e in found.entries} == {e.call for e in held.entries}
        assert of(found, 1) == of(held, 1)
        assert Counter(e.text for e in found.entries) <= most


@pytest.mark.parametrize("counted", [None, 0, 1, 7])
@pytest.mark.parametrize("told_from", [None, 0, 1, 7])
@pytest.mark.parametrize("later", [False, True])
def test_a_notice_of_what_is_held_changes_nothing_from_whichever_number_it_counts(
    counted, told_from, later
) -> None:
    own = talk(10, counted=counted)
    held = session(own, *([talk(3, counted=counted, life=1, what="plums")] if later else []))
    assert words(after(held, telling(own, counted=told_from))) == words(held)


@pytest.mark.parametrize(("counted", "told_from"), [(None, None), (None, 0), (1, None), (1, 0), (1, 1)])
@pytest.mark.parametrize("start", [0, 2, 5])
@pytest.mark.parametrize("end", [1, 3, 8, 12])
def test_a_notice_of_a_part_of_what_is_held_takes_nothing_back(counted, told_from, start, end) -> None:
    own = talk(6, counted=counted)
    held = session(own, talk(3, counted=counted, life=1, what="plums"))
    assert words(after(held, telling(own[start:end] or own[:1], counted=told_from))) == words(held)


@pytest.mark.parametrize("told_from", [0, 1])
def test_what_a_notice_words_otherwise_is_known_by_its_turn_however_it_counts(
    told_from,
) -> None:
    own = talk(6, counted=1)
    contents = telling(own, counted=told_from)
    contents[4]["content"] = "something that was understood later"
    texts = [e.text for e in after(session(own), contents).entries]
    assert texts == [*(e.text for e in own[:4]), contents[4]["content"], *(e.text for e in own[5:])]


@pytest.mark.parametrize("told_from", [None, 0, 1])
def test_a_notice_that_shows_nothing_of_a_life_leaves_it_alone(told_from) -> None:
    held = session(talk(6, counted=1), talk(3, counted=1, life=1, what="plums"))
    contents = telling(talk(6, counted=1, what="pears"), counted=told_from)
    assert words(after(held, contents)) == words(held)


def test_a_line_that_only_the_notice_has_stands_in_its_place() -> None:
    own = talk(3, counted=1)
    contents = telling(own, counted=0)
    contents.insert(4, {"role": "assistant", "content": "One moment.", "turn_id": 1, "speech_start_ms": 1})
    texts = [e.text for e in after(session(own, talk(2, counted=1, life=1)), contents).entries]
    assert texts[:5] == [*(e.text for e in own[:4]), "One moment."]


def test_a_history_of_greeting_and_first_words_comes_back_to_no_later_agent() -> None:
    greeting = entry(0, "assistant", "Hello, this is the clinic.", counted=None)
    own = (greeting, *(msgspec.structs.replace(e, turn=e.turn + 1) for e in talk(2, counted=None)))
    held = session(own, talk(1, counted=None, life=1, what="plums"))
    found = after(held, telling(own[:2], counted=None))
    assert words(found) == words(held)
    window = [Message(role=e.role, content=e.text) for e in of(held, 1)]
    assert missing(found, [*window, Message(role="user", content="And now?")]) == ()


def test_a_line_that_was_told_without_a_number_is_known_once_it_has_one() -> None:
    held = session((*talk(2, counted=1), entry(1, "assistant", "One moment, please.", counted=None)))
    lines = [(e, e.turn_id or 2) for e in held.entries]
    window = [Message(role=e.role, content=e.text, turn_id=number) for e, number in lines]
    window = [*window[:-1], msgspec.structs.replace(window[-1], turn_id=3)]
    found = reconcile(held, [*window, Message(role="user", content="Well?", turn_id=4)], now=T + 50)
    assert [e.text for e in found.entries] == [*(e.text for e in held.entries), "Well?"]
