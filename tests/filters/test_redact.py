"""``redact``: where it searches a message for personal data, and which marks it writes."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.base import Context
from filters.injection import Injected
from filters.redact import Redact
from tests.conversations import message_of, messages_of

CONTEXT = Context(now=0.0)
MAIL = "ann@example.org"


def redacted(message, **options):
    (shown,) = Redact(**options).apply([message_of(message)], CONTEXT)
    return shown


def arguments_of(given, **options):
    function = {"name": "f", "arguments": given}
    message = {"role": "assistant", "tool_calls": [{"id": "call_1", "function": function}]}
    return redacted(message, **options).tool_calls[0]["function"]["arguments"]


def test_each_text_part_is_redacted():
    picture = {"type": "image_url", "image_url": {"url": f"https://example.org/{MAIL}"}}
    content = [{"type": "text", "text": MAIL}, picture, {"type": "text", "text": "Hi."}]
    assert redacted({"role": "user", "content": content}).content == [
        {"type": "text", "text": "[email]"},
        picture,
        content[2],
    ]


@pytest.mark.parametrize("kind", ["text", "input_text", "output_text"])
def test_each_kind_of_text_part_is_redacted(kind):
    content = [{"type": kind, "text": MAIL, "more": 1}]
    shown = redacted({"role": "user", "content": content}).content
    assert shown == [{"type": kind, "text": "[email]", "more": 1}]


def test_a_refusal_is_redacted_wherever_it_stands():
    parts = [{"type": "refusal", "refusal": f"I will not mail {MAIL}."}]
    message = {"role": "assistant", "content": parts, "refusal": f"Not {MAIL}.", "unknown": MAIL}
    shown = redacted(message)
    assert shown.content == [{"type": "refusal", "refusal": "I will not mail [email]."}]
    assert shown.others == {"refusal": "Not [email].", "unknown": MAIL}


def test_a_function_is_redacted_as_a_tool_is():
    called = {"name": "f", "arguments": f'{{"mail": "{MAIL}"}}'}
    message = {"role": "assistant", "content": None, "function_call": called}
    shown = redacted(message).others["function_call"]
    assert shown == {"name": "f", "arguments": '{"mail": "[email]"}'}
    assert redacted(message, arguments=False).others["function_call"] == called
    result = {"role": "function", "name": "f", "content": f"{MAIL} 4111 1111 1111 1111"}
    assert redacted(result).content == "[email] [card]"
    assert redacted(result, roles=["user"]).content == result["content"]


def test_what_a_tool_of_ones_own_form_is_given_is_redacted():
    call = {"id": "call_1", "type": "custom", "custom": {"name": "mail", "input": f"to {MAIL}"}}
    (shown,) = redacted({"role": "assistant", "tool_calls": [call]}).tool_calls
    assert shown == {**call, "custom": {"name": "mail", "input": "to [email]"}}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None, "refusal": None, "function_call": None},
        {"role": "assistant", "content": "Hi.", "refusal": 4, "function_call": {"name": "f"}},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": None}, {"type": "text"}]},
        {"role": "assistant", "tool_calls": [{"id": "1", "custom": {"input": 4}}, {"id": "2", "custom": 4}]},
        {"role": "assistant", "function_call": "f"},
        {"role": "function", "name": "f", "content": None},
    ],
)
def test_what_has_another_form_passes_as_it_is(message):
    told = messages_of([message])
    assert Redact().apply(told, CONTEXT) is told


def test_what_was_generated_is_redacted_as_what_was_heard():
    metadata = {"interrupted": True, "original": f"Write to {MAIL}.", "source": "llm"}
    shown = redacted({"role": "assistant", "content": "Write to", "metadata": metadata})
    assert shown.metadata == {**metadata, "original": "Write to [email]."}
    beside = {"role": "assistant", "content": "Write to", "original": f"Write to {MAIL}."}
    assert redacted(beside).others == {"original": "Write to [email]."}


@pytest.mark.parametrize(("roles", "shown"), [(["user"], "[email]"), (["assistant", "tool"], MAIL)])
def test_what_memory_tells_of_a_user_goes_with_the_users_words(roles, shown):
    summary = Injected(role="system", content=MAIL)
    assert [each.content for each in Redact(roles=roles).apply([summary], CONTEXT)] == [shown]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_messages_are_left(role):
    told = messages_of([{"role": role, "content": MAIL}])
    assert Redact().apply(told, CONTEXT) is told


def test_what_is_not_personal_is_the_same_object():
    told = messages_of(
        [
            {"role": "user", "content": "Hi.", "metadata": {"source": "asr"}},
            {"role": "assistant", "content": None, "metadata": {"original": "Hi."}, "refusal": "No."},
        ]
    )
    assert Redact().apply(told, CONTEXT) is told


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (f'{{"a": ["{MAIL}", 1.0], "b":null}}', '{"a": ["[email]", 1.0], "b":null}'),
        ('{"a":"ann\\u0040example.org"}', '{"a":"[email]"}'),
        (f'{{"a":"say \\"{MAIL}\\""}}', '{"a":"say \\"[email]\\""}'),
        ('{"a":"to\nann\\u0040example.org"}', '{"a":"to\\n[email]"}'),
        (f'{{"a": "\\u0041", "b": "{MAIL}"}}', '{"a": "\\u0041", "b": "[email]"}'),
        (f'{{"{MAIL}" : 1}}', f'{{"{MAIL}" : 1}}'),
        (f'{{"a":"{MAIL}", "b', '{"a":"[email]", "b'),
        (f'{{"a":"{MAIL}", "b": "say \\"Hi\\", \\', '{"a":"[email]", "b": "say \\"Hi\\", \\'),
        ('{"a": 13812345678}', '{"a": 13812345678}'),
        ("", ""),
    ],
)
def test_string_values_among_arguments_are_redacted(given, shown):
    assert arguments_of(given) == shown


@pytest.mark.parametrize("end", ["", "\\"])
def test_arguments_that_were_cut_within_quotations_are_read_once(end):
    given = '{"note": "' + r"say \"no\" " * 4_000 + end
    started = time.thread_time()
    assert arguments_of(given) == given
    assert time.thread_time() - started < 1


def test_arguments_can_be_left_alone():
    assert arguments_of(f'"{MAIL}"', arguments=False) == f'"{MAIL}"'


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.sampled_from([MAIL, f'"{MAIL}\\'])),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=8,
)


@given(value=values, mark=st.sampled_from(["[{kind}]", '"{kind}"', "\\"]), ascii_only=st.booleans())
def test_arguments_stay_json_of_the_same_form(value, mark, ascii_only):
    shown = json.loads(arguments_of(json.dumps(value, ensure_ascii=ascii_only), template=mark))
    assert shown == _redacted(value, Redact(template=mark).text)


def _redacted(value, text):
    if isinstance(value, dict):
        return {name: _redacted(each, text) for name, each in value.items()}
    if isinstance(value, list):
        return [_redacted(each, text) for each in value]
    return text(value) if isinstance(value, str) else value


def test_something_must_be_looked_for():
    with pytest.raises(ValueError, match="say what to redact"):
        Redact(kinds=[])


def test_an_own_pattern_cannot_take_a_known_name():
    with pytest.raises(ValueError, match="'card' is a kind of its own"):
        Redact(patterns={"card": "x"})


def test_an_own_pattern_that_is_refused_tells_its_fault():
    with pytest.raises(ValueError, match=r"is not a valid RE2 pattern: missing \)"):
        Redact(patterns={"order": "(ORD"})
