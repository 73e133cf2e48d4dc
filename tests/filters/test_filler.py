import pytest
from pydantic import ValidationError

from filters.base import Context
from filters.filler import Filler


def phrase(*phrases, now=0.0):
    return Filler(after="800ms", phrases=phrases).phrase(Context(now=now))


def test_the_time_is_read_in_seconds():
    assert Filler(after="800ms", phrases=["Hm."]).after == pytest.approx(0.8)


def test_a_phrase_stands_apart_from_the_words_behind_it():
    assert phrase("One moment.") == phrase(" One moment. \n") == "One moment. "


def test_phrases_take_turns_and_the_same_turn_has_the_same():
    told = [phrase("a", "b", "c", now=1678909999.0 + second / 2) for second in range(12)]
    assert set(told) == {"a ", "b ", "c "}
    assert told == [phrase("a", "b", "c", now=1678909999.0 + second / 2) for second in range(12)]


def test_a_phrase_is_words_and_no_template():
    assert phrase("{user} {0}") == "{user} {0} "


def test_it_has_nothing_to_do_with_deltas():
    step = Filler(after="1s", phrases=["Hm."])
    assert step.open(Context(now=0.0)) is None and step.first(Context(now=0.0)) is None


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"after": "50ms", "phrases": ["Hm."]}, "from 100ms to 10s"),
        ({"after": "11s", "phrases": ["Hm."]}, "from 100ms to 10s"),
        ({"after": 0.8, "phrases": ["Hm."]}, "with its unit"),
        ({"after": "1s", "phrases": []}, "at least 1 item"),
        ({"after": "1s", "phrases": [" "]}, "write words"),
        ({"after": "1s", "phrases": ["a" * 201]}, "at most 200 characters"),
        ({"phrases": ["Hm."]}, "required"),
    ],
)
def test_a_setting_that_cannot_work_is_a_fault(options, fault):
    with pytest.raises(ValidationError, match=fault):
        Filler(**options)
