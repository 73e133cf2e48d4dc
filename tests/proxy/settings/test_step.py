import pytest
from pydantic import ValidationError

from filters.base import RequestFilter
from proxy.settings.filter_registry import FilterRegistry, build_step

TRIAL = FilterRegistry("trial_filters")


@pytest.mark.parametrize(
    ("written", "turns"),
    [("keep_last", 6), ({"keep_last": None}, 6), ({"keep_last": {}}, 6), ({"keep_last": {"turns": 2}}, 2)],
)
def test_a_step_is_a_name_or_a_name_with_options(written, turns):
    assert build_step(written, RequestFilter, TRIAL).turns == turns


@pytest.mark.parametrize("written", [None, 7, [], ["keep_last"], {}, True])
def test_any_other_step_is_answered_with_its_form(written):
    with pytest.raises(ValueError, match="write a filter's name, or one name with its options"):
        build_step(written, RequestFilter, TRIAL)


def test_wrong_options_are_placed_under_the_filters_name():
    with pytest.raises(ValidationError) as caught:
        build_step({"keep_last": {"turns": 0, "turn": 1}}, RequestFilter, TRIAL)
    assert [error["loc"] for error in caught.value.errors()] == [
        ("keep_last", "turns"),
        ("keep_last", "turn"),
    ]
