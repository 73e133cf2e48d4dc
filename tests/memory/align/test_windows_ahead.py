"""A window may run ahead of what is recorded: it is recognised at a glance, and as a close look has it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.memory.align import strategies
from proxy.memory.align.alignment import NEW
from proxy.memory.align.strategies import align
from proxy.memory.speech import speech_of
from tests.memory.call import Call, message, messages

WORDS = ["Yes.", "No.", "Tell me more about Rome.", "And then?"]


def talk(draw: st.DrawFn, turns: int) -> list:
    lines = []
    for turn in range(turns):
        lines.append(message(f"u:{draw(st.sampled_from(WORDS))}", turn_id=turn))
        heard = draw(st.sampled_from([f"Answer {turn}, to its end.", f"Answer {turn}"]))
        lines.append(message(f"a:{heard}", turn_id=turn))
    return lines


@st.composite
def calls(draw: st.DrawFn):
    """Draws a stored call, and a window that shows up to three turns more."""
    known, ahead = draw(st.integers(1, 6)), draw(st.integers(0, 3))
    lines = talk(draw, known + ahead)
    call = Call()
    for turn in range(known):
        call.ask(*lines[: 2 * turn + 1], answer=f"Answer {turn}, to its end.")
    asked = [*lines, message(f"u:{draw(st.sampled_from(WORDS))}", turn_id=known + ahead)]
    return call.held, asked[-draw(st.integers(1, len(asked))) :]


@given(calls())
def test_the_fast_path_tells_what_the_other_strategies_tell(given_call):
    held, window = given_call
    speech = speech_of(window)
    with pytest.MonkeyPatch.context() as patch:
        glance = align(held, speech)
        patch.setattr(strategies, "exact_suffix", lambda _: None)
        patch.setattr(strategies, "revised_words", lambda _: None)
        look = align(held, speech)
    assert (glance.new_call, [*glance.places], glance.end) == (look.new_call, [*look.places], look.end)


@pytest.mark.parametrize("heard", ["Sorry, what was that?", "Sorry, what"])
def test_an_answer_of_a_turn_ahead_is_no_copy_of_an_equal_one_before(heard: str):
    call = Call()
    call.ask("1u:Tea.", answer="Sorry, what was that?")
    lines = ["1u:Tea.", "1a:Sorry, what was that?", "2u:Two teas.", f"2a:{heard}", "3u:A pot of tea."]
    assert [*align(call.held, speech_of(messages(*lines))).places] == [0, 1, NEW, NEW, NEW]
