import msgspec
from msgspec import UNSET

from filters.message import Message
from filters.tool_groups import Group, call_ids, close_groups, groups, with_results
from tests.conversations import message_of


def call(*ids):
    return message_of({"role": "assistant", "tool_calls": [{"id": i} for i in ids]})


def result(answers):
    return message_of({"role": "tool", "tool_call_id": answers, "content": "done"})


USER = message_of({"role": "user", "content": "Hi"})


def test_a_talk_without_calls_has_no_groups():
    assert groups([USER, result("lost")]) == ()


def test_a_group_spans_whatever_stands_between():
    told = [call("a", "b"), *[USER] * 500, result("b"), USER, result("a")]
    assert groups(told) == (Group(call=0, results=(501, 503), unanswered=()),)


def test_a_hundred_parallel_calls_are_one_group():
    ids = [f"call_{i}" for i in range(100)]
    (group,) = groups([call(*ids), *map(result, reversed(ids))])
    assert len(group.results) == 100
    assert not group.open


def test_a_group_with_a_missing_result_is_open():
    (group,) = groups([call("a", "b", "c"), result("b")])
    assert group.unanswered == ("a", "c")
    assert group.open


def test_a_result_that_stands_before_its_call_is_in_its_group():
    assert groups([result("a"), call("a")]) == (Group(call=1, results=(0,), unanswered=()),)


def test_of_two_calls_behind_it_a_result_belongs_to_the_first():
    assert [g.results for g in groups([result("a"), call("a"), USER, call("a")])] == [(0,), ()]


def test_an_id_that_is_used_again_means_the_nearest_call_before():
    told = [call("a"), result("a"), USER, call("a"), USER, call("a"), result("a"), result("a")]
    assert [(g.call, g.results, g.open) for g in groups(told)] == [
        (0, (1,), False),
        (3, (), True),
        (5, (6, 7), False),
    ]


def test_only_the_assistant_calls_tools():
    odd = message_of({"role": "user", "content": "Hi", "tool_calls": [{"id": "a"}]})
    assert groups([odd, result("a")]) == ()


def test_calls_without_an_id_and_ids_given_twice_are_no_trouble():
    message = message_of({"role": "assistant", "tool_calls": [{"id": "a"}, {}, {"id": ["b"]}, {"id": "a"}]})
    assert call_ids(message) == ("a",)


def test_results_go_where_their_call_goes():
    told = [call("a"), result("a"), call("b"), result("b"), result("lost"), USER]
    assert with_results(told, {0, 3}) == {0, 1}
    assert with_results(told, {4, 5}) == {4, 5}
    assert with_results(told, ()) == set()


# --- the form of before 2023

CALLED = Message(
    role="assistant", content=None, others={"function_call": {"name": "weather", "arguments": "{}"}}
)
TOLD = Message(role="function", name="weather", content="Rain.")


def test_a_function_and_its_result_are_a_group():
    words = Message(role="user", content="Hi")
    assert groups([words, CALLED, words, TOLD]) == (Group(1, (3,), ()),)
    assert groups([CALLED, words]) == (Group(0, (), ("function:weather",)),)
    other = Message(role="function", name="time", content="Noon.")
    assert groups([CALLED, other]) == (Group(0, (), ("function:weather",)),)


def test_functions_that_are_called_again_are_told_apart():
    assert groups([CALLED, TOLD, CALLED, TOLD]) == (Group(0, (1,), ()), Group(2, (3,), ()))


def test_a_group_of_a_function_is_closed_in_its_own_form():
    words = Message(role="user", content="Hi")
    assert close_groups([CALLED, words, TOLD], "None.") == [CALLED, TOLD, words]
    stub = Message(role="function", name="weather", content="None.", turn_id=UNSET)
    assert close_groups([CALLED, words], "None.") == [CALLED, stub, words]
    assert close_groups([CALLED, words], None) == [words]
    speaking = msgspec.structs.replace(CALLED, content="One moment.")
    assert close_groups([speaking, words], None) == [Message(role="assistant", content="One moment."), words]
    assert close_groups([words, CALLED], "None.", waits=True) == [words, CALLED]
    assert close_groups([words, TOLD], "None.") == [words, TOLD]
