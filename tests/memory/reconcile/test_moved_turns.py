"""Turns that have moved to the cold part stay there once, whatever the engine replays of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filters.letters import bare
from proxy.memory.align.alignment import NEW
from proxy.memory.align.anchors import align_lines
from proxy.memory.align.line import Line
from proxy.memory.align.strategies import align
from proxy.memory.compaction import cap, move_out
from proxy.memory.merge.answer import Answer, apply_answer
from proxy.memory.session import Entry, Session
from proxy.memory.speech import speech_of as spoken_in
from tests.memory.call import (
    Call,
    asked,
    calling,
    marked,
    message,
    messages,
    missing,
    reconcile,
    result,
    shown,
)

NORMAL = pytest.param(25, id="25 calls")
LONG = pytest.param(2000, id="2000 calls", marks=[pytest.mark.long, pytest.mark.timeout(1800)])
BOUNDS = [(4, 4), (6, 3), (12, 4), (60, 20)]
SHORT = ["Yes.", "No.", "Okay then.", "Yes, okay."]


class Long:
    """A long call whose session is cut down after each turn, and what has moved out of it."""

    def __init__(self, most, keep):
        self.most, self.keep = most, keep
        self.held, self.cold = Session(), []

    def ask(self, window, at, answer):
        self.held = reconcile(self.held, window, now=at)
        assert reconcile(self.held, window, now=at + 0.5) == self.held
        turn = asked(self.held, window)
        assert turn is not None
        self.held = apply_answer(self.held, Answer(question=turn, text=answer), now=at)
        self.held, moved = cap(self.held, self.most, self.keep)
        self.cold += moved
        assert reconcile(self.held, window, now=at + 0.5) == self.held
        assert asked(self.held, window) == turn

    @property
    def whole(self):
        return [(entry.role, bare(entry.text)) for entry in (*self.cold, *self.held.entries)]


def spoken(lines):
    return [(line.role, bare(line.text)) for line in lines]


def words(draw, turn, *, short):
    if short and draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(SHORT))
    return f"Question {turn} about {draw(st.sampled_from(['rain', 'the sun', 'wind']))}."


def answer_and_heard_part(draw, turn, *, same=False):
    """An answer, and as much of it as is heard."""
    of = 0 if same else turn
    text = " ".join(f"{word}{of}" for word in ["Well,", "it", "is", "fine", "out", "there."])
    return text, draw(st.sampled_from([text, text, text.upper(), " ".join(text.split()[:3]) + "..."]))


@pytest.mark.parametrize("size", [None, 30, 8, 2])
@pytest.mark.parametrize("numbered", [{"user", "assistant"}, {"user"}, set()], ids=["all", "users", "none"])
@pytest.mark.parametrize("examples", [NORMAL, LONG])
def test_every_turn_is_held_once_in_the_session_or_in_its_cold_part(examples, numbered, size):
    most = 45 if examples == 25 else 14
    bounds = [(60, 20)] * (most > 30) + [(12, 4), (6, 3)]

    @settings(max_examples=examples)
    @given(st.data(), st.sampled_from(bounds), st.integers(10, most))
    def check(data, bounds, turns):
        call, history = Long(*bounds), []
        for turn in range(turns):
            fields = {"turn_id": turn, "timestamp": 1_700_000_000 + turn}
            asks = words(data.draw, turn, short=bool(numbered) or size != 2)
            history.append(message(f"u:{asks}", **(fields if "user" in numbered else {})))
            window = history if size is None else history[-size:]
            shown = marked(call.held, window)
            lost = missing(call.held, window)
            restored = spoken([*lost, *window])
            assert restored == spoken(history)[-len(restored) :] and len(restored) > len(call.held.entries)
            assert spoken(shown) == spoken(window)
            text, heard = answer_and_heard_part(data.draw, turn, same="user" in numbered and size is None)
            call.ask(window, 10.0 * turn, text)
            assert call.whole == [*spoken(history), ("assistant", bare(text))]
            history.append(message(f"a:{heard}", **(fields if "assistant" in numbered else {})))

    check()


@pytest.mark.parametrize("fields", [{"turn_id": 1}, {}], ids=["numbered", "unnumbered"])
def test_an_answer_that_has_moved_is_not_taken_for_the_newest_which_begins_alike(fields):
    def turn(number, text):
        return message(text, **({"turn_id": number} if fields else {}))

    call, history = Long(4, 2), []
    for number, (answer, heard) in enumerate(
        [("Sure, one.", "Sure"), ("Okay.", "Okay."), ("Sure, two.", "")]
    ):
        history.append(turn(number, f"u:Question {number}."))
        call.ask(history, 10.0 * number, answer)
        history += [message(f"a:{heard}")] * bool(heard)
    history.append(turn(3, "u:And then?"))
    held = reconcile(call.held, history, now=30.0)
    assert [shown(entry) for entry in held.entries] == ["u:Question 2.", "u:And then?"]


@pytest.mark.parametrize("later", ["yes, and now", "yes, and now we go"])
def test_words_that_are_still_being_said_leave_their_history_in_its_place_however_it_repeats_itself(later):
    call, history = (
        Long(4, 2),
        messages("u:Hm?", "a:Sure.", "u:yes, and", "a:Well.", "u:What?", "a:Well.", "u:yes, and"),
    )
    for end in (1, 3, 5):
        call.ask(history[:end], 10.0 * end, history[end].text)
    call.ask(history, 70.0, "Sure, but")
    history[-1] = message(f"u:{later}")
    call.held = reconcile(call.held, history, now=71.0)
    assert call.whole == spoken(history)


def jumbled(text):
    return " ".join(reversed(text.split()))


def unpunctuated(text):
    return text.replace(".", "")


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("size", [None, 8, 4])
@pytest.mark.parametrize("spelt", [str, str.upper, unpunctuated])
def test_a_caller_who_says_the_same_is_held_once_where_the_engine_spells_answers_otherwise(
    bounds, size, spelt
):
    call, history = Long(*bounds), []
    for turn in range(60):
        history.append(message("u:Yes."))
        window = history if size is None else history[-size:]
        restored = spoken([*missing(call.held, window), *window])
        assert restored == spoken(history)[-len(restored) :]
        call.ask(window, 10.0 * turn, f"Answer {turn}.")
        assert call.whole == [*spoken(history), ("assistant", f"answer{turn}")]
        history.append(message("a:" + spelt(f"Answer {turn}.")))


@pytest.mark.parametrize("bounds", BOUNDS)
def test_a_long_history_whose_answers_are_jumbled_is_held_once(bounds):
    call, history, expected = Long(*bounds), [], []
    for turn in range(60):
        history.append(message("u:Yes."))
        text = f"Well, this is number {turn}."
        call.ask(history, 10.0 * turn, text)
        expected += [("user", "yes"), ("assistant", bare(text))]
        assert call.whole == expected
        history.append(message(f"a:{jumbled(text)}"))


@pytest.mark.parametrize("bounds", [(2, 2), *BOUNDS])
def test_a_caller_who_cuts_every_answer_at_the_same_word_is_held_once(bounds):
    call, history = Long(*bounds), []
    for turn in range(60):
        history.append(message("u:Yes."))
        call.ask(history, 10.0 * turn, f"Answer {turn}.")
        assert missing(call.held, history) == ()
        assert call.whole == [*spoken(history), ("assistant", f"answer{turn}")]
        history.append(message("a:Answer"))


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("words", [SHORT, ["Yes."]])
def test_a_long_history_without_its_answers_is_held_once(bounds, words):
    call, history, expected = Long(*bounds), [], []
    for turn in range(60):
        text = words[turn * turn % 7 % len(words)]
        history.append(message(f"u:{text}"))
        call.ask(history, 10.0 * turn, f"Answer {turn}.")
        expected += [("user", bare(text)), ("assistant", f"answer{turn}")]
        assert call.whole == expected


def test_what_is_new_between_held_lines_is_not_taken_for_older_ones():
    held = messages("u:Fine.", calling("x"), "u:Good.")
    window = messages("u:One.", "u:Two.", "u:Fine.", calling("x"), "u:Hm.", calling("x"), "u:Good.")
    assert align_lines([*map(Line, held)], [*map(Line, window)], moved=True) == [NEW, NEW, 0, 1, NEW, NEW, 2]


def test_what_has_moved_is_not_taken_for_an_answer_close_by_that_begins_alike():
    held = messages("u:Two.", "a:Okay.", "u:Three.", "a:Sure, it is.")
    window = messages("a:Hello.", "u:One.", "a:Sure", "u:Two.", "a:Okay.", "u:Three.", "u:Four.")
    assert align_lines([*map(Line, held)], [*map(Line, window)], moved=True) == [NEW, NEW, NEW, 0, 1, 2, NEW]


def test_an_overtaken_answer_is_held_where_the_newest_window_began_before_what_has_moved():
    texts = [f"Word {n}." for n in range(20)]
    call = Call()
    for n in range(20):
        call.ask(*(f"u:{text}" for text in texts[: n + 1]), answer=f"Answer {n}.")
    asked_before = call.now + 1
    call.ask(*(f"u:{text}" for text in texts), "u:And then?", "u:And now?")
    held, _ = move_out(call.held, 36)
    assert held.latest_request.start < held.cold_count - len(held.entries)
    window = messages(*(f"u:{text}" for text in texts), "u:And then?")
    held = reconcile(held, window, now=asked_before)
    answer = Answer(question=asked(held, window), text="In a moment.")
    held = apply_answer(held, answer, now=asked_before)
    assert [e.text for e in held.entries][-3:] == ["And then?", "In a moment.", "And now?"]


def test_calls_stand_in_their_row_though_an_older_answer_says_what_the_newest_was_to_say():
    again = ["u:Right.", "a:Is it?", "u:Hm."]
    lines = [*again, calling("a"), result("a"), "a:Yes.", *again, calling("b"), result("b")]
    call = Call()
    call.ask(*lines, answer="Yes.", finished=False)
    held, _ = move_out(call.held, 6)
    replay = align(held, spoken_in(messages(*lines, "a:Ye", "u:Thanks.")))
    assert replay.places == [NEW] * 6 + [0, 1, 2, 3, 4, 5, NEW]


def test_an_answer_before_the_first_number_is_of_the_turn_before_though_the_next_one_says_the_same():
    call = Call()
    call.ask("0u:No.", answer="Anything else?")
    call.ask("0u:No.", "a:Anything else?", "1u:Hm.", answer="Anything else?")
    slid = messages("a:Anything else?", "1u:Hm.", "a:Anything", "2u:Yes.")
    assert [m.text for m in missing(call.held, slid)] == ["No."]
    call.ask(*slid)
    assert call.memory == ["u:No.", "a:Anything else?", "u:Hm.", "a:Anything|Anything else?", "u:Yes."]


@pytest.mark.parametrize(("second", "calls"), [(None, 1), (9000, 1), (1000, 0)])
def test_turns_that_are_counted_anew_begin_a_call_though_the_first_ones_have_moved(second, calls):
    stamp = {} if second is None else {"timestamp": second}
    entries = [
        Entry(role=role, turn=turn, turn_id=turn, content=f"{role} {turn}", timestamp=2000 + turn)
        for turn in (20, 21)
        for role in ("user", "assistant")
    ]
    call = Call(Session(entries=tuple(entries), next_turn=22, cold_count=40, created=1.0))
    call.ask(message("0a:Hello!", **stamp), message("1u:Me again.", **stamp))
    assert call.held.call == calls
