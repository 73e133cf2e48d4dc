import json

import pytest
from pydantic import ValidationError

from filters.base import Context
from filters.interruptable import Interruptable

CONTEXT = Context(now=0.0)


def test_the_event_is_agoras():
    assert Interruptable(value=False).first(CONTEXT) == {
        "id": "custom_metadata",
        "object": "chat.completion.custom_metadata",
        "choices": [],
        "metadata": {"interruptable": False},
    }


def test_the_voice_of_an_answer_goes_along():
    shown = Interruptable(value=True, tts_params={"speed": 1.2, "voice": {"id": "ann"}}).first(CONTEXT)
    assert shown["metadata"] == {
        "interruptable": True,
        "tts_params": {"params": {"speed": 1.2, "voice": {"id": "ann"}}},
    }
    assert json.loads(json.dumps(shown)) == shown


def test_what_is_done_to_an_event_is_not_done_to_the_next():
    step = Interruptable(value=True, tts_params={"voice": {"id": "ann"}})
    step.first(CONTEXT)["metadata"]["tts_params"]["params"]["voice"]["id"] = "bob"
    assert step.first(CONTEXT)["metadata"]["tts_params"]["params"]["voice"]["id"] == "ann"


def test_it_has_nothing_to_do_with_deltas():
    assert Interruptable(value=True).open(CONTEXT) is None


@pytest.mark.parametrize("options", [{}, {"value": None}, {"value": True, "tts_params": {"a": object()}}])
def test_a_setting_that_cannot_work_is_a_fault(options):
    with pytest.raises(ValidationError):
        Interruptable(**options)
