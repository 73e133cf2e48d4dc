"""The cost of a request is linear in its length, because all calls share one event loop."""

from collections.abc import Callable, Sequence

import msgspec
import pytest

from filters.message import Message
from proxy.memory.align.strategies import align
from proxy.memory.compaction import SessionLimits, fit
from proxy.memory.merge.request import apply_request
from proxy.memory.session import Entry, Segment, Session
from proxy.memory.speech import speech_of
from proxy.memory.view import RequestView, prompt_view
from tests.memory.call import NOW, calling, message, result
from tests.memory.work import work

FEW = 150
LIMITS = SessionLimits(max_messages=60, keep_messages=20, summaries=10)
ROLES = ("user", "assistant")
Made = Callable[[int], list[Message]]


def talk(*, numbered: bool) -> Session:
    lines = [(n, role, f"{role} {n} on pears, you know") for n in range(20) for role in ROLES]
    entries = [
        Entry(role=role, turn=n, turn_id=n if numbered else None, content=text) for n, role, text in lines
    ]
    told = Segment(text="Notes.", call=0, turn=5)
    return Session(entries=tuple(entries), next_turn=20, created=NOW, updated=NOW, summaries=(told,))


def turn(before: Session, window: Sequence[Message]) -> Session:
    """All that a turn asks of memory, but for reading and writing."""
    reading = RequestView(window).view_of(before)
    prompt_view(reading)
    said, _ = apply_request(before, reading.speech, now=NOW + 9, alignment=reading.alignment)
    return fit(before, said, LIMITS, now=NOW + 9)[0]


def results(n: int) -> list[Message]:
    return [message("u:user 3 on pears, you know"), *(result(f"c{i}") for i in range(n)), message("u:Well?")]


def results_under_a_number(n: int) -> list[Message]:
    first, *rest = results(n)
    return [msgspec.structs.replace(first, turn_id=3), *rest[:-1], message("20u:Well?")]


def answers_again(n: int) -> list[Message]:
    said = [message("u:user 3 on pears, you know"), *[message("a:assistant 3 on pears, you know")] * n]
    return [*said, message("u:And now?")]


def answers_of_nobody(n: int) -> list[Message]:
    return [message("u:user 3 on pears, you know"), *[message("a:Hm, well.")] * n, message("u:And now?")]


def words(n: int) -> list[Message]:
    return [message("u:user 19 on pears, you know"), *(message(f"u:Word {i}.") for i in range(n))]


def growing_words(n: int) -> list[Message]:
    return [message("u:" + " ".join(["so"] * i)) for i in range(1, n)] + words(n)


def one_turn(n: int) -> list[Message]:
    return [message("3u:user 3 on pears, you know"), *(message(f"3a:Other {i}.") for i in range(n))]


def one_turn_of_equals(n: int) -> list[Message]:
    return [message("3u:user 3 on pears, you know"), *[message("3a:assistant 3 on pears, you know")] * n]


def a_number_now_and_then(n: int) -> list[Message]:
    return [message("3u:user 3 on pears, you know"), *(message(f"a:Other {i}.") for i in range(n))]


def calls_without_results(n: int) -> list[Message]:
    return [message("u:Go."), *(calling(f"c{i}") for i in range(n)), message("u:Well?")]


def calls_with_results(n: int) -> list[Message]:
    return [
        message("u:Go."),
        *(line for i in range(n) for line in (calling(f"c{i}"), result(f"c{i}"))),
        message("u:Well?"),
    ]


def calls_of_one_id(n: int) -> list[Message]:
    return [message("u:Go."), *[calling("c")] * n, *[result("c")] * n, message("u:Well?")]


def a_long_talk(n: int) -> list[Message]:
    return [message(f"{role[0]}:{role} {i} on pears") for i in range(n) for role in ROLES] + words(1)


def a_long_numbered_talk(n: int) -> list[Message]:
    return [message(f"{i}{role[0]}:{role} {i} on pears") for i in range(n) for role in ROLES]


MADE: list[Made] = [
    results,
    results_under_a_number,
    answers_again,
    answers_of_nobody,
    words,
    growing_words,
    one_turn,
    one_turn_of_equals,
    a_number_now_and_then,
    calls_without_results,
    calls_with_results,
    calls_of_one_id,
    a_long_talk,
    a_long_numbered_talk,
]


@pytest.mark.parametrize("made", MADE, ids=lambda made: made.__name__)
@pytest.mark.parametrize("numbered", [False, True], ids=["words", "numbers"])
@pytest.mark.parametrize("first", [False, True], ids=["held", "first"])
def test_twice_as_long_a_window_takes_twice_the_work(made: Made, numbered: bool, first: bool) -> None:
    held = Session() if first else talk(numbered=numbered)
    once, twice = (work(lambda n=n: turn(held, made(n))) for n in (FEW, 2 * FEW))
    assert twice < 2.5 * once


def numbered_calls(n: int) -> list[Message]:
    calls = calls_with_results(n)[:-1]
    return [*(msgspec.structs.replace(line, turn_id=1) for line in calls), message("2u:Well?")]


def a_call_again_and_again(n: int) -> list[Message]:
    return [message("u:Go."), *[calling("c"), result("c")] * n, message("u:Well?")]


def numbered_answers(n: int) -> list[Message]:
    return [*one_turn(n), message("4u:Well?")]


def growing_answers(n: int) -> list[Message]:
    return [message("u:Go."), *(message("a:" + "so" * i) for i in range(1, n)), message("u:Well?")]


UNCUT: list[Made] = [
    results,
    numbered_calls,
    calls_with_results,
    a_call_again_and_again,
    a_number_now_and_then,
    numbered_answers,
    growing_answers,
]


@pytest.fixture
def soon_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes a tenth of a second would take a test minutes to count."""
    monkeypatch.setattr("proxy.memory.align.anchors._MAX_PAIRS", 900)
    monkeypatch.setattr("proxy.memory.align.anchors._NEWEST", 30)
    monkeypatch.setattr("proxy.memory.align.turn_ids._MAX_PAIRS", 900)


def slid(window: list[Message]) -> list[Message]:
    return [*window[:1], *window[3:], message("9u:More.")]


@pytest.mark.parametrize("made", UNCUT, ids=lambda made: made.__name__)
@pytest.mark.usefixtures("soon_wide")
def test_a_turn_that_nothing_can_cut_takes_no_more_as_it_is_replayed(made: Made) -> None:
    def again(n: int) -> int:
        window = made(n)
        held = turn(Session(), window[:-1])
        assert len(held.entries) >= n
        return work(lambda: turn(held, slid(window)))

    assert again(2 * FEW) < 2.5 * again(FEW)


@pytest.mark.parametrize(
    "made", [calls_with_results, a_call_again_and_again, a_number_now_and_then, one_turn]
)
@pytest.mark.parametrize("shown", [list, slid], ids=["again", "slid"])
def test_a_turn_of_hundreds_of_lines_is_known_as_one_of_few(
    made: Made, shown: Callable[[list[Message]], list[Message]], request: pytest.FixtureRequest
) -> None:
    window = made(FEW)
    held = turn(Session(), window[:-1])
    near = align(held, speech_of(shown(window))).places
    request.getfixturevalue("soon_wide")
    assert align(held, speech_of(shown(window))).places == near
