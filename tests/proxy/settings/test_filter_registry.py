import sys

import pytest
from pydantic import ValidationError

from filters.base import RequestFilter
from proxy.settings.filter_registry import FilterRegistry, build_step

TRIAL = FilterRegistry("trial_filters")


def test_only_modules_that_define_a_filter_are_filters():
    assert TRIAL.names(RequestFilter) == ("keep_last", "shout")
    assert not {"base", "message"} & set(FilterRegistry().names(RequestFilter))


def test_a_filter_is_found_by_its_modules_name():
    assert TRIAL.get("keep_last", RequestFilter).__name__ == "KeepLast"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "base",
        "nothing",
        "keep_last.KeepLast",
        "..keep_last",
        "os",
        "Keep_last",
        "keep last",
        "__init__",
        "ä",
    ],
)
def test_what_names_no_filter_is_answered_with_all_there_are(name):
    with pytest.raises(LookupError, match=r"[Aa]vailable: keep_last, shout"):
        TRIAL.get(name, RequestFilter)


def test_a_near_miss_is_answered_with_what_was_meant():
    with pytest.raises(LookupError, match=r"no filter named 'kep_last'; did you mean 'keep_last'\?"):
        TRIAL.get("kep_last", RequestFilter)


def test_a_name_from_outside_is_never_imported():
    assert "antigravity" not in sys.modules
    for name in ("antigravity", "..antigravity", "antigravity.x"):
        with pytest.raises(LookupError):
            TRIAL.get(name, RequestFilter)
    assert "antigravity" not in sys.modules


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
