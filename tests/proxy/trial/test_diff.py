from hypothesis import given
from hypothesis import strategies as st

from proxy.trial import explain, render
from proxy.trial.render import message_summary, render_change, render_diff

messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant"])},
        optional={
            "content": st.sampled_from(["Hi", "Hi there", "Bye", "", None]),
            "turn_id": st.integers(1, 3),
        },
    ),
    max_size=7,
)


def shown(before, after):
    return render.plain(render_diff(before, after)).splitlines()


@given(messages, messages)
def test_the_steps_lead_from_the_one_to_the_other(before, after):
    made = []
    for edit in explain.edits(before, after):
        if edit.kind == "same":
            assert before[edit.before :][: edit.count] == after[edit.after :][: edit.count]
            made += before[edit.before :][: edit.count]
        elif edit.kind != "removed":
            made.append(after[edit.after])
    assert made == after


@given(messages, messages)
def test_each_message_is_told_of_once(before, after):
    steps = list(explain.edits(before, after))
    old = [edit.before + i for edit in steps if edit.kind != "added" for i in range(edit.count)]
    new = [edit.after + i for edit in steps if edit.kind != "removed" for i in range(edit.count)]
    assert (old, new) == (list(range(len(before))), list(range(len(after))))


@given(messages)
def test_the_same_conversation_has_no_difference(told):
    assert [edit.kind for edit in explain.edits(told, told)] == ["same"] * bool(told)


def user(content, **more):
    return {"role": "user", "content": content, **more}


def test_what_is_the_same_is_counted():
    same = [user(str(i)) for i in range(12)]
    assert shown(same, [*same, user("new")]) == ["  … 12 messages unchanged", '+ [12] user "new"']
    assert shown([user("a"), user("b")], [user("a")]) == ["  … 1 message unchanged", '- [1] user "b"']


def test_a_message_with_other_words_is_one_that_changed():
    assert shown([user("Hi there")], [user("[10:00] Hi there")]) == [
        "~ [0] user",
        '  - content: "Hi there"',
        '  + content: "[10:00] Hi there"',
    ]


def test_a_message_that_much_is_added_to_is_one_that_changed():
    long = "Hi there. " + "Some of what is known of the caller. " * 40
    for before, after in ("Hi there.", long), (long, "Hi there."):
        assert shown([user(before)], [user(after)])[0] == "~ [0] user"


def test_a_changed_message_that_moved_says_so():
    before, after = [user("zzzz"), user("Hi")], [user("Hi you")]
    assert shown(before, after) == [
        '- [0] user "zzzz"',
        "~ [1] -> [0] user",
        '  - content: "Hi"',
        '  + content: "Hi you"',
    ]


def test_a_field_that_is_there_on_one_side_alone_has_one_line():
    assert shown([user("Hi", name="ann")], [user("Hi")]) == ["~ [0] user", '  - name: "ann"']


def test_words_that_differ_stand_out():
    old, new = render_change("content", "I had tea", "I had coffee")
    assert [text for text, style in old if "reverse" in style] == ["tea"]
    assert [text for text, style in new if "reverse" in style] == ["coffee"]


def test_very_long_texts_are_shown_without_looking_for_words():
    old, new = render_change("content", "a b " * 9000, "a c " * 9000)
    assert not [style for _, style in (*old, *new) if "reverse" in style]


def test_a_message_is_one_line():
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}
    assert message_summary(call) == 'assistant null {"tool_calls":[{"id":"c"}]}'
    assert message_summary(user("a\nb"), 3) == '[3] user "a\\nb"'
