"""Whatever windows come, however little they make sense, the same request again leaves the same memory."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filters.message import Message
from proxy.memory.merge.answer import Answer, apply_answer
from proxy.memory.session import Session, decode, encode
from tests.memory.call import asked, calling, message, messages, reconcile, result

NORMAL = pytest.param(200, id="200 calls")
LONG = pytest.param(2000, id="2000 calls", marks=[pytest.mark.long, pytest.mark.timeout(600)])
TEXTS = st.sampled_from(["Hi", "Hi there", "Yes", "No", "", "Hello there. Yes.", "a b c d", "a b"])


@st.composite
def lines(draw) -> Message:
    fields = draw(
        st.fixed_dictionaries({}, optional={"turn_id": st.integers(0, 3), "timestamp": st.integers(1, 4)})
    )
    if draw(st.integers(0, 8)) == 0:
        calls = calling(draw(st.sampled_from("xy"))).tool_calls
        return Message(role="assistant", content=None, tool_calls=calls, **fields)
    if draw(st.integers(0, 8)) == 0:
        return Message(role="tool", content="found", tool_call_id=draw(st.sampled_from("xy")), **fields)
    return Message(
        role=draw(st.sampled_from(["user", "user", "assistant", "system"])), content=draw(TEXTS), **fields
    )


REQUESTS = st.tuples(
    st.lists(lines(), max_size=4), st.none() | st.tuples(TEXTS, st.booleans()), st.integers(0, 9)
)


def after(session, request):
    window, answer, at = request
    session = reconcile(session, window, now=at)
    if answer is None:
        return session
    turn = asked(session, window)
    return apply_answer(session, Answer(question=turn, text=answer[0], finished=answer[1]), now=at)


def is_newest(session, at):
    """Whether what arrives from then on is newer than all that is held.

    An attempt at the newest request may have been recorded before an earlier one: of the answers to both, the
    later attempt's is held, and so one more attempt, later than these, puts its own in the place of that.
    """
    if session.latest_request is None or at < session.latest_request.at:
        return False
    return not any(entry.pending and entry.recorded_at > at for entry in session.entries)


@pytest.mark.parametrize("examples", [NORMAL, LONG])
def test_the_same_request_again_leaves_the_same_memory(examples: int):
    @settings(max_examples=examples)
    @given(st.lists(REQUESTS, max_size=4))
    def check(requests):
        session = Session()
        for request in requests:
            window, answer, at = request
            before, session = session, after(session, request)
            assert after(session, request) == session
            # An early form of words that are being answered is not recorded: later it is said anew.
            if session != before and is_newest(session, at):
                assert after(session, (window, answer, at + 1)) == session
            assert decode(encode(session)) == session

    check()


@pytest.mark.parametrize("examples", [NORMAL, LONG])
def test_turns_never_go_back(examples: int):
    @settings(max_examples=examples)
    @given(st.lists(REQUESTS, max_size=4))
    def check(requests):
        session = Session()
        for request in requests:
            session = after(session, request)
            lives = [entry.call for entry in session.entries]
            assert lives == sorted(lives)

    check()


def test_the_newest_window_begins_with_its_first_line_where_answers_before_it_give_way_to_one():
    session = Session()
    for window, at in ((messages("u:Hi"), 0), (messages("s:Hi"), 1), ([calling("x")], 1)):
        session = after(session, (window, ("Hi", False), at))
    assert [bool(entry.tool_calls) for entry in session.entries] == [False, True, False]
    assert session.latest_request.start == 1


def test_a_turn_without_words_of_the_user_does_not_begin_a_life():
    opening = messages(message("u:"), message("1u:Hi", timestamp=1))
    held = reconcile(Session(), opening, now=1)
    held = apply_answer(held, Answer(question=asked(held, opening), text="Hello there. Yes."), now=1)
    once = reconcile(held, messages(message("0a:Hi", timestamp=1)), now=2)
    assert once.call == 0
    assert [entry.text for entry in once.entries] == ["Hi", "Hi", "Hello there. Yes."]
    again = messages(message("0a:Hi", timestamp=1), message("s:Be brief."))
    assert reconcile(once, again, now=3) == once


def test_windows_are_laid_out_by_turn_number():
    window = messages("2u:Then this.", "1u:First that.")
    held = reconcile(Session(), window, now=1)
    assert [entry.text for entry in held.entries] == ["First that.", "Then this."]
    longer = reconcile(held, [*window, message("2a:Well.")], now=2)
    assert [entry.text for entry in longer.entries] == ["First that.", "Then this.", "Well."]


def test_a_result_of_a_call_that_nobody_saw_is_held_once():
    window = messages("u:Look.", result("x"))
    held = reconcile(Session(), window, now=1)
    longer = reconcile(held, messages("u:Look.", result("x"), "a:Here.", "u:Ah."), now=2)
    assert [entry.role for entry in longer.entries] == ["user", "tool", "assistant", "user"]


def test_what_is_answered_to_a_call_is_held_though_the_words_before_it_were_asked_again_later():
    look = messages("u:Look.")
    held = after(Session(), (look, ("Well, let", False), 1))
    held = after(held, (look, ("Well, let me", False), 4))
    carried_out = [*look, calling("x"), result("x")]
    once = after(held, (carried_out, ("It is red.", True), 2))
    assert once.entries[-1].text == "It is red."
    assert after(once, (carried_out, ("It is red.", True), 4)) == once


def test_of_attempts_at_one_request_the_answer_to_the_newest_is_held_whenever_it_is_recorded():
    look = messages("u:Look.")
    held = after(Session(), (look, ("Well, let", False), 1))
    for answer, at in [("Well, let me", 4), ("Let me see", 3)]:
        held = after(held, (look, (answer, False), at))
        assert held.entries[-1].text == "Well, let me"
