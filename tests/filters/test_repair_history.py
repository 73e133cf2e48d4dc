import pytest
from pydantic import ValidationError

from filters.base import Context
from filters.repair_history import RepairHistory
from tests.conversations import message_of, messages_of

STUB = "No result: the call was not completed."


def repaired(*raws, **options):
    return list(RepairHistory(**options).apply(messages_of(raws), Context(now=0.0)))


def user(text="Go on"):
    return {"role": "user", "content": text}


def an_answer(text="Well", **fields):
    return {"role": "assistant", "content": text, **fields}


def call(*ids, **fields):
    return {"role": "assistant", "tool_calls": [{"id": i} for i in ids], **fields}


def result(answers, content="done"):
    return {"role": "tool", "tool_call_id": answers, "content": content}


def test_a_history_in_order_is_handed_on_as_it_is():
    told = messages_of([user(), call("a", "b"), result("a"), result("b"), an_answer(), user()])
    assert RepairHistory().apply(told, Context(now=0.0)) is told


def test_a_name_and_calls_that_are_null_go():
    nulls = {"name": None, "function_call": None}
    written = [call("a", content=None, **nulls), result("a"), an_answer(tool_calls=None, **nulls), user()]
    assert repaired(*written) == messages_of([call("a", content=None), result("a"), an_answer(), user()])


def test_results_move_behind_their_call_in_its_order():
    shown = repaired(call("a", "b"), an_answer(), result("b"), user(), result("a"))
    assert shown == messages_of([call("a", "b"), result("a"), result("b"), an_answer(), user()])


def test_a_result_that_came_first_moves_behind_its_call():
    assert repaired(result("a"), call("a"), user()) == messages_of([call("a"), result("a"), user()])


def test_a_result_without_its_call_goes():
    assert repaired(user(), result("a"), {"role": "tool", "content": "done"}) == messages_of([user()])


def test_the_second_result_of_a_call_goes():
    shown = repaired(call("a"), result("a", "one"), result("a", "two"), user())
    assert shown == messages_of([call("a"), result("a", "one"), user()])


def test_an_id_that_is_used_again_keeps_each_result_with_its_call():
    told = [call("a"), result("a", "one"), user(), call("a"), result("a", "two"), user()]
    assert repaired(*told) == messages_of(told)


def test_a_call_that_the_talk_passed_over_gets_a_result_of_its_own_turn():
    shown = repaired(call("a", "b", turn_id=7), result("b"), user())
    stub = {"role": "tool", "tool_call_id": "a", "content": STUB, "turn_id": 7}
    assert shown == messages_of([call("a", "b", turn_id=7), stub, result("b"), user()])


def test_the_wording_of_a_missing_result_is_an_option():
    assert repaired(call("a"), user(), stub="{lost}")[1] == message_of(result("a", "{lost}"))
    with pytest.raises(ValidationError, match="stub"):
        RepairHistory(stub="")


@pytest.mark.parametrize("unanswered", ["stub", "drop"])
def test_an_open_group_at_the_very_end_waits(unanswered):
    told = [user(), call("a", "b"), result("b")]
    assert repaired(*told, unanswered=unanswered) == messages_of(told)


def test_a_group_is_not_at_the_end_when_a_control_word_followed_it():
    shown = repaired(user(), call("a"), user("<continue>"))
    assert shown == messages_of([user(), call("a"), result("a", STUB)])


def test_calls_without_results_can_go_and_leave_the_words():
    shown = repaired(call("a", "b"), result("b"), call("c", content="Let me see"), user(), unanswered="drop")
    assert shown == messages_of([call("b"), result("b"), an_answer("Let me see"), user()])


def test_a_call_that_nothing_can_answer_goes():
    nameless = {"role": "assistant", "tool_calls": [{"type": "function"}]}
    assert repaired(user(), nameless, user()) == messages_of([user(), user()])


def test_an_empty_list_of_calls_goes_and_the_words_stay():
    assert repaired(an_answer("Hi", tool_calls=[])) == messages_of([an_answer("Hi")])


def test_tools_can_be_left_alone():
    told = [user(), result("a"), call("b"), user()]
    assert repaired(*told, tools=False) == messages_of(told)


@pytest.mark.parametrize(
    "nothing",
    [
        an_answer(""),
        an_answer(" \n"),
        an_answer(None),
        an_answer([]),
        an_answer([{"type": "text", "text": " "}]),
        user(""),
    ],
)
def test_what_says_nothing_goes(nothing):
    assert repaired(nothing, user()) == messages_of([user()])
    assert repaired(nothing, user(), empty=False) == messages_of([nothing, user()])


@pytest.mark.parametrize(
    "something",
    [
        an_answer(None, refusal="No."),
        an_answer(None, audio={"id": "audio_1"}),
        an_answer(None, name="ann"),
        an_answer([{"type": "refusal", "refusal": "No."}]),
        {"role": "user", "content": [{"type": "image_url"}]},
        {"role": "system", "content": ""},
    ],
)
def test_what_is_no_words_but_something_stays(something):
    assert repaired(something, user()) == messages_of([something, user()])


def test_a_function_that_was_called_gets_a_result_of_its_own_form():
    called, told = an_answer(None, function_call={"name": "look"}), {"role": "function", "name": "look"}
    assert repaired(called, user()) == messages_of([called, {**told, "content": STUB}, user()])
    told["content"] = "Rain."
    assert repaired(called, user(), told) == messages_of([called, told, user()])
    assert repaired(user(), told) == messages_of([user(), told])


def test_the_newest_message_of_the_user_stays_though_it_is_empty():
    assert repaired(user(""), user(), user(""), an_answer("")) == messages_of([user(), user("")])


def test_control_words_go_when_they_are_all_of_a_message():
    part = {"role": "user", "content": [{"type": "text", "text": "<continue>"}]}
    kept = [user("<continue> please"), an_answer("<continue>")]
    assert repaired(user("<continue>"), *kept, part, user(" <continue>\n")) == messages_of(kept)


def test_one_control_word_stays_where_the_user_said_nothing_else():
    assert repaired(user("<continue>"), an_answer(), user("<continue>")) == messages_of(
        [an_answer(), user("<continue>")]
    )


def test_silence_is_nothing_else():
    assert repaired(user(""), user("<continue>")) == messages_of([user("<continue>")])
    assert repaired(user("<continue>"), user("")) == messages_of([user("")])
    assert repaired(user(), user(""), user("<continue>")) == messages_of([user()])


def test_a_picture_is_no_control_word():
    picture = {"role": "user", "content": [{"type": "text", "text": "<continue>"}, {"type": "image_url"}]}
    assert repaired(picture, user()) == messages_of([picture, user()])


def test_control_words_are_an_option():
    told = [user("<continue>"), user("go!"), user()]
    assert repaired(*told, control=[]) == messages_of(told)
    assert repaired(*told, control=[" go!\n"]) == messages_of([told[0], told[2]])


def test_an_answer_committed_twice_is_kept_once():
    assert repaired(an_answer(turn_id=1), an_answer(turn_id=1), an_answer(), an_answer("")) == messages_of(
        [an_answer(turn_id=1)]
    )


def test_white_space_tells_no_answer_from_another():
    told = repaired(
        an_answer("Until six  today."), an_answer("Until six today.\n"), an_answer("Until\nsix today.")
    )
    assert told == messages_of([an_answer("Until six  today.")])


@pytest.mark.parametrize(
    "told",
    [
        [an_answer(turn_id=1), an_answer(turn_id=2)],
        [an_answer("Well"), call("a", content="Well"), result("a")],
        [an_answer(), user(), an_answer()],
        [an_answer(name="ann"), an_answer(name="bob")],
        [user("yes"), user("yes")],
        [an_answer(None, refusal="No."), an_answer(None, refusal="No.")],
        [an_answer("Untilsix."), an_answer("Until six.")],
        [call("a", content="Well"), result("a"), call("b", content="Well"), result("b")],
    ],
)
def test_what_only_looks_like_a_repeat_stays(told):
    assert repaired(*told) == messages_of(told)


def test_repeats_can_be_left_alone():
    assert len(repaired(an_answer(), an_answer(), repeated=False)) == 2


def test_system_messages_keep_their_place():
    system = {"role": "system", "content": "Now be brief."}
    assert repaired(call("a"), system, result("a")) == messages_of([call("a"), result("a"), system])
