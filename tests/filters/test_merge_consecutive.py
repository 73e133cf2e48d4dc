import pytest
from pydantic import ValidationError

from filters.base import Context
from filters.injection import Injected
from filters.merge_consecutive import MergeConsecutive
from tests.conversations import messages_of

IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}


def merged(*raws, **options):
    return list(MergeConsecutive(**options).apply(messages_of(raws), Context(now=0.0)))


def a_message(content, role="user", **fields):
    return {"role": role, "content": content, **fields}


def text(words):
    return {"type": "text", "text": words}


def test_a_talk_that_alternates_is_handed_on_as_it_is():
    told = messages_of([a_message("a"), a_message("b", "assistant"), a_message("c")])
    assert MergeConsecutive().apply(told, Context(now=0.0)) is told


def test_messages_of_a_role_in_a_row_become_one():
    shown = merged(
        a_message("a"),
        a_message("b"),
        a_message("c"),
        a_message("d", "assistant"),
        a_message("e", "assistant"),
        a_message("f"),
    )
    assert shown == messages_of([a_message("a\nb\nc"), a_message("d\ne", "assistant"), a_message("f")])


def test_what_memory_tells_stays_apart_from_what_was_said():
    told = [
        Injected(role="user", content="<summary>…</summary>"),
        *messages_of([a_message("a"), a_message("b")]),
    ]
    shown = MergeConsecutive().apply(told, Context(now=0.0))
    assert shown == [told[0], *messages_of([a_message("a\nb")])]
    assert isinstance(shown[0], Injected)


def test_the_separator_is_an_option():
    assert merged(a_message("a"), a_message("b"), separator=" ") == messages_of([a_message("a b")])


def test_the_first_message_gives_the_fields():
    first = {"turn_id": 1, "timestamp": 10, "metadata": {"user": "ann"}}
    later = {"turn_id": 2, "timestamp": 20, "metadata": {"user": "bob"}}
    assert merged(a_message("a", **first), a_message("b", **later)) == messages_of(
        [a_message("a\nb", **first)]
    )
    assert merged(a_message([IMAGE], **first), a_message([SOUND], **later)) == messages_of(
        [a_message([IMAGE, SOUND], **first)]
    )


def test_parts_stand_in_their_order_and_words_between_them_are_joined():
    shown = merged(
        a_message("a"),
        a_message("b"),
        a_message([IMAGE, text("c")]),
        a_message([SOUND]),
        a_message("d"),
        a_message("e"),
    )
    assert shown == messages_of([a_message([text("a\nb"), IMAGE, text("c"), SOUND, text("d\ne")])])


@pytest.mark.parametrize("nothing", ["", []])
def test_what_is_empty_adds_no_separator(nothing):
    assert merged(a_message("a"), a_message(nothing), a_message("b")) == messages_of([a_message("a\nb")])


@pytest.mark.parametrize(
    "told",
    [
        [a_message("a", name="ann"), a_message("b", name="bob")],
        [a_message("a", name="ann"), a_message("b")],
        [a_message("a", id="1"), a_message("b", id="2")],
        [a_message("a", "assistant"), a_message("b", "assistant", tool_calls=[{"id": "1"}])],
        [a_message("a", "assistant", tool_calls=[{"id": "1"}]), a_message("b", "assistant")],
        [a_message("a", "tool", tool_call_id="1"), a_message("b", "tool", tool_call_id="2")],
        [a_message("a", "system"), a_message("b", "system")],
        [a_message(None, "assistant", refusal="No."), a_message(None, "assistant", refusal="No.")],
    ],
)
def test_what_is_not_of_one_piece_is_not_merged(told):
    assert merged(*told) == messages_of(told)


def test_no_name_is_no_name_however_it_is_sent():
    assert len(merged(a_message("a", name=None), a_message("b"))) == 1


def test_system_messages_are_merged_when_asked_for():
    assert merged(a_message("a", "system"), a_message("b", "system"), roles=["system"]) == messages_of(
        [a_message("a\nb", "system")]
    )


@pytest.mark.parametrize("roles", [[], ["tool"], ["bot"]])
def test_roles_that_cannot_be_merged_are_a_fault(roles):
    with pytest.raises(ValidationError, match="roles"):
        MergeConsecutive(roles=roles)
