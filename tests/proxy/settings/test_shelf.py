import sys

import pytest

from filters.base import RequestFilter
from proxy.settings.filter_registry import FilterRegistry

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
    with pytest.raises(LookupError, match="There are: keep_last, shout"):
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
