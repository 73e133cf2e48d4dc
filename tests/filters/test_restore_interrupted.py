import pytest
from pydantic import ValidationError

from filters.base import Context
from filters.message import Message
from filters.restore_interrupted import RestoreInterrupted
from tests.conversations import message_of


def cut(content, original=None, **fields):
    metadata = {"interrupted": True, **({"original": original} if original is not None else {})}
    return message_of({"role": "assistant", "content": content, "metadata": metadata, **fields})


def shown(message, **options) -> Message:
    (result,) = RestoreInterrupted(**options).apply([message], Context(now=0.0))
    return result


def test_both_are_told_apart():
    words = shown(cut("Once upon a ti", "Once upon a time in a land")).content
    assert words == "Once upon a ti [interrupted here; the caller did not hear: time in a land]"


def test_only_the_words_change():
    message = cut("A", "A b", turn_id=2, timestamp=1, id="x")
    result = shown(message)
    assert (result.metadata, result.turn_id, result.others) == (message.metadata, 2, {"id": "x"})


def test_an_answer_of_which_nothing_was_heard_is_all_unheard():
    assert shown(cut("", "Hello")).content == "[interrupted here; the caller did not hear: Hello]"


@pytest.mark.parametrize("original", [None, "", "Hello.", 7, "Goodbye to all"])
def test_without_a_rest_only_the_interruption_is_told(original):
    assert shown(cut("Hello ", original)).content == "Hello [interrupted]"


def test_a_message_without_words_and_original_passes():
    message = cut(None, tool_calls=[{"id": "a"}])
    assert shown(message) is message


def test_parts_that_are_no_text_stay_where_they_are():
    image = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
    result = shown(cut([image, {"type": "text", "text": "A"}], "A b"), wording="{heard}|{unheard}")
    assert result.content == [image, {"type": "text", "text": "A|b"}]


def test_the_original_replaces_what_was_heard_where_it_is_known():
    assert shown(cut("A", "A b"), show="original").content == "A b"
    assert shown(cut("A"), show="original").content == "A"


def test_what_was_heard_stays_alone_when_asked_for():
    messages = [cut("A ", "A b")]
    assert RestoreInterrupted(show="heard").apply(messages, Context(now=0.0)) is messages


@pytest.mark.parametrize(
    "raw",
    [
        {"role": "assistant", "content": "A", "metadata": {"original": "A b"}},
        {"role": "assistant", "content": "A", "metadata": {"interrupted": "true", "original": "A b"}},
        {"role": "assistant", "content": "A", "metadata": None},
        {"role": "user", "content": "A", "metadata": {"interrupted": True, "original": "A b"}},
    ],
)
def test_what_is_no_interrupted_answer_is_handed_on(raw):
    messages = [message_of(raw)]
    assert RestoreInterrupted().apply(messages, Context(now=0.0)) is messages


def test_braces_in_what_was_said_are_words():
    result = shown(cut("{unheard} {0.x}", "{unheard} {0.x} {heard} }"), wording="{heard}|{unheard}")
    assert result.content == "{unheard} {0.x}|{heard} }"


@pytest.mark.parametrize(
    ("wording", "fault"),
    [
        ("{heard}", "must contain {unheard}"),
        ("{unheard} {time}", "{time} is not a name .* {heard}, {unheard}"),
        ("{unheard.__class__}", "is not a name"),
        ("{unheard!r}", "stand alone"),
        ("{unheard:>9}", "stand alone"),
        ("{unheard", "unpaired brace"),
        ("{unheard} {}", "{} is not a name"),
    ],
)
def test_a_wording_that_cannot_be_filled_is_a_fault(wording, fault):
    with pytest.raises(ValidationError, match=fault):
        RestoreInterrupted(wording=wording)


def test_the_other_wording_knows_no_rest():
    with pytest.raises(ValidationError, match=r"\{unheard\} is not a name"):
        RestoreInterrupted(wording_without_rest="{heard} {unheard}")


@pytest.mark.parametrize("show", ["heard", "original"])
def test_a_second_time_tells_nothing_more_where_both_are_not_shown(show):
    once = shown(cut("A", "A b"), show=show)
    assert shown(once, show=show) == once
