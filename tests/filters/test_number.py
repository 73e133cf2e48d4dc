"""A boolean is not accepted as a number, in any option of any filter."""

from typing import Any, get_args

import pytest
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from filters.base import AnswerFilter, RequestFilter
from filters.set_parameters import SetParameters
from tests.discovery import answer_filters, request_filters

FILTERS = [*request_filters().items(), *answer_filters().items()]


def kinds_of(field: FieldInfo) -> set[Any]:
    """What an option may be, without the notes on it."""
    kinds = (field.annotation, *get_args(field.annotation))
    return {each.__origin__ if hasattr(each, "__metadata__") else each for each in kinds}


NUMBERS = {
    f"{name}.{option}": (found, field.alias or option)
    for name, found in FILTERS
    for option, field in found.model_fields.items()
    if {int, float} & kinds_of(field)
}


def faults(found: type[RequestFilter | AnswerFilter], **options: Any) -> set[tuple[Any, str]]:
    try:
        found.model_validate(options)
    except ValidationError as error:
        return {(each["loc"], each["type"]) for each in error.errors()}
    return set()


def test_there_are_such_options():
    assert {"trim_history.max_tokens", "inject_facts.limit", "recall.min_score", "filler.after"} <= set(
        NUMBERS
    )


@pytest.mark.parametrize("title", NUMBERS)
@pytest.mark.parametrize("given", [True, False])
def test_a_truth_is_no_number(title: str, given: bool):
    found, option = NUMBERS[title]
    told = {kind for place, kind in faults(found, **{option: given}) if place == (option,)}
    assert told and told <= {"int_type", "float_type", "value_error"}


def test_a_bound_is_a_number():
    assert "float_type" in {kind for _, kind in faults(SetParameters, at_most={"max_tokens": True})}
    assert SetParameters(at_most={"n": 1, "temperature": 0.5}).at_most == {"n": 1, "temperature": 0.5}
