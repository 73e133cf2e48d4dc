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


def said(content, role="user", **fields):
    return {"role": role, "content": content, **fields}


def text(words):
    return {"type": "text", "text": words}


def test_a_talk_that_alternates_is_handed_on_as_it_is():
    told = messages_of([said("a"), said("b", "assistant"), said("c")])
    assert MergeConsecutive().apply(told, Context(now=0.0)) is told


def test_messages_of_a_role_in_a_row_become_one():
    shown = merged(said("a"), said("b"), said("c"), said("d", "assistant"), said("e", "assistant"), said("f"))
    assert shown == messages_of([said("a\nb\nc"), said("d\ne", "assistant"), said("f")])


def test_what_memory_tells_stays_apart_from_what_was_said():
    told = [Injected(role="user", content="<summary>…</summary>"), *messages_of([said("a"), said("b")])]
    shown = MergeConsecutive().apply(told, Context(now=0.0))
    assert shown == [told[0], *messages_of([said("a\nb")])]
    assert isinstance(shown[0], Injected)


def test_the_separator_is_an_option():
    assert merged(said("a"), said("b"), separator=" ") == messages_of([said("a b")])


def test_the_first_message_gives_the_fields():
    first = {"turn_id": 1, "timestamp": 10, "metadata": {"user": "ann"}}
    later = {"turn_id": 2, "timestamp": 20, "metadata": {"user": "bob"}}
    assert merged(said("a", **first), said("b", **later)) == messages_of([said("a\nb", **first)])
    assert merged(said([IMAGE], **first), said([SOUND], **later)) == messages_of(
        [said([IMAGE, SOUND], **first)]
    )


def test_parts_stand_in_their_order_and_words_between_them_are_joined():
    shown = merged(said("a"), said("b"), said([IMAGE, text("c")]), said([SOUND]), said("d"), said("e"))
    assert shown == messages_of([said([text("a\nb"), IMAGE, text("c"), SOUND, text("d\ne")])])


@pytest.mark.parametrize("nothing", ["", []])
def test_what_is_empty_adds_no_separator(nothing):
    assert merged(said("a"), said(nothing), said("b")) == messages_of([said("a\nb")])


@pytest.mark.parametrize(
    "told",
    [
        [said("a", name="ann"), said("b", name="bob")],
        [said("a", name="ann"), said("b")],
        [said("a", id="1"), said("b", id="2")],
        [said("a", "assistant"), said("b", "assistant", tool_calls=[{"id": "1"}])],
        [said("a", "assistant", tool_calls=[{"id": "1"}]), said("b", "assistant")],
        [said("a", "tool", tool_call_id="1"), said("b", "tool", tool_call_id="2")],
        [said("a", "system"), said("b", "system")],
        [said(None, "assistant", refusal="No."), said(None, "assistant", refusal="No.")],
    ],
)
def test_what_is_not_of_one_piece_is_not_merged(told):
    assert merged(*told) == messages_of(told)


def test_no_name_is_no_name_however_it_is_sent():
    assert len(merged(said("a", name=None), said("b"))) == 1


def test_system_messages_are_merged_when_asked_for():
    assert merged(said("a", "system"), said("b", "system"), roles=["system"]) == messages_of(
        [said("a\nb", "system")]
    )


@pytest.mark.parametrize("roles", [[], ["tool"], ["bot"]])
def test_roles_that_cannot_be_merged_are_a_fault(roles):
    with pytest.raises(ValidationError, match="roles"):
        MergeConsecutive(roles=roles)
