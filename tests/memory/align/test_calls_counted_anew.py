"""Call ids that restart in every turn: a window that shows little but a tool group takes nothing back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filters.message import Message
from proxy.memory.align.line import Line, similarity
from tests.memory.call import Call, calling, message, messages, result

NORMAL = pytest.param(100, id="100 calls")
LONG = pytest.param(2000, id="2000 calls", marks=[pytest.mark.long, pytest.mark.timeout(600)])
GROUP = [calling("call_0"), result("call_0")]
FIRST = ["u:One.", "calls call_0", "result call_0", "a:First."]
CALLS = GROUP[0].tool_calls


def called_once():
    call = Call()
    call.ask("u:One.", tool_calls=CALLS)
    call.ask("u:One.", *GROUP, answer="First.")
    return call


def called_once_numbered():
    call = Call()
    call.ask("1u:One.", tool_calls=CALLS)
    call.ask("1u:One.", *GROUP, answer="First.")
    return call


def test_a_window_of_a_tool_group_is_of_the_newest_turn():
    call = called_once()
    call.ask("a:First.", "u:Two.", tool_calls=CALLS)
    call.ask(*GROUP, answer="Second.")
    assert call.memory == [*FIRST, "u:Two.", "calls call_0", "result call_0", "a?:Second."]


def test_calls_that_were_not_recorded_are_not_taken_for_a_former_turns():
    call = called_once()
    call.ask("a:First.", "u:Two.")
    call.ask(*GROUP, answer="Second.")
    assert call.memory == [*FIRST, "u:Two.", "calls call_0", "result call_0", "a?:Second."]


def test_a_result_whose_call_has_slid_out_goes_to_the_newest_call():
    call = called_once()
    call.ask("a:First.", "u:Two.", tool_calls=CALLS)
    call.ask(result("call_0"), answer="Second.")
    assert call.memory == [*FIRST, "u:Two.", "calls call_0", "result call_0", "a?:Second."]
    call.ask(result("call_0"), "a:Second.", "u:Three.")
    assert call.memory[-4:] == ["calls call_0", "result call_0", "a:Second.", "u:Three."]


def results_of(call):
    return [entry.content for entry in call.held.entries if entry.role == "tool"]


@pytest.mark.parametrize("follows", [(), ("u:Three.",)], ids=["alone", "before new words"])
def test_another_result_under_the_same_id_is_the_newest_calls(follows: tuple[str, ...]):
    call = called_once()
    call.ask("a:First.", "u:Two.", tool_calls=CALLS)
    call.ask(GROUP[0], result("call_0", "another"), *follows, answer="Last.")
    assert call.memory == [*FIRST, "u:Two.", "calls call_0", "result call_0", *follows, "a?:Last."]
    assert results_of(call) == ["found", "another"]


def test_another_result_whose_call_has_slid_out_takes_no_former_ones_place():
    call = called_once()
    call.ask("a:First.", "u:Two.", tool_calls=CALLS)
    call.ask(result("call_0", "another"), "u:Three.", answer="Last.")
    assert call.memory == [*FIRST, "u:Two.", "calls call_0", "result call_0", "u:Three.", "a?:Last."]
    assert results_of(call) == ["found", "another"]


def test_in_a_numbered_window_a_result_goes_with_its_call_too():
    call = called_once_numbered()
    call.ask("1a:First.", "2u:Two.", tool_calls=CALLS)
    call.ask(GROUP[0], result("call_0", "another"), "3u:Three.", answer="Last.")
    assert call.memory == [*FIRST, "u:Two.", "calls call_0", "result call_0", "u:Three.", "a?:Last."]
    assert results_of(call) == ["found", "another"]


def test_nothing_is_withdrawn_on_the_evidence_of_calls_alone():
    call = called_once()
    call.ask("a:First.", "u:Two.")
    call.ask(*GROUP, "u:Three.", answer="Third.")
    assert "u:Two." in call.memory


def test_words_are_withdrawn_where_a_numbered_window_shows_calls_alone():
    call = Call()
    call.ask("1u:One.", tool_calls=CALLS)
    call.ask("1u:One.", *GROUP, answer="First.", finished=False)
    call.ask(*GROUP, "2u:Er.")
    call.ask(*GROUP, "3u:Two.")
    assert call.memory == ["u:One.", "calls call_0", "result call_0", "u:Two."]


@pytest.mark.parametrize(
    ("replayed", "held", "one"),
    [
        ('{"city": "Lisbon"}', '{"city":"Lisbon"}', True),
        ('{"b": 1, "a": 2}', '{"a": 2, "b": 1}', True),
        ("{}", "", True),
        ('{"city": "Lisbon"}', '{"city": "Porto"}', False),
        ("not JSON", "nor this", False),
    ],
)
def test_a_call_with_other_arguments_is_another_call(replayed: str, held: str, one: bool):
    assert (similarity(asking(replayed), asking(held)) > 0) == one


def asking(arguments):
    call = {"id": "call_0", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return Line(Message(role="assistant", content=None, tool_calls=[call]))


def test_of_an_answer_that_is_withdrawn_with_its_words_nothing_is_held():
    call = Call()
    call.ask("1u:Yes.")
    call.ask("1u:Yes.", "1u:Tomorrow", answer="When?")
    call.ask("1u:Yes.", "2u:Tomorrow at noon.", answer="Fine.")
    assert call.memory == ["u:Yes.", "u:Tomorrow at noon.", "a?:Fine."]


def test_a_remark_without_a_number_is_not_taken_for_the_greeting():
    own = {"metadata": {"source": "command"}}
    call = Call()
    call.ask(message("a:Hello!", **own), "1u:One.", answer="First.")
    call.ask("1u:One.", message("a:By the way.", **own), "2u:Two.")
    assert call.memory[0] == "a:Hello!"
    assert call.memory.index("a:By the way.") > call.memory.index("u:One.")


@pytest.mark.parametrize("examples", [NORMAL, LONG])
def test_no_turn_is_lost_however_small_the_window(examples: int):
    turns = st.lists(st.tuples(st.booleans(), st.integers(1, 2)), min_size=1, max_size=6)

    @settings(max_examples=examples)
    @given(turns, st.integers(2, 7))
    def check(turns, size):
        call, said = Call(), []
        for number, (recorded, rounds) in enumerate(turns):
            said += messages(f"u:Question {number}.")
            for i in range(rounds):
                call.ask(*said[-size:], tool_calls=calling(f"call_{i}").tool_calls if recorded else None)
                said += [calling(f"call_{i}"), result(f"call_{i}")]
            call.ask(*said[-size:], answer=f"Answer {number}.")
            said += messages(f"a:Answer {number}.")
            words = [entry.text for entry in call.held.entries if entry.role == "user"]
            assert words == [f"Question {n}." for n in range(number + 1)]

    check()
