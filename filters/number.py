"""Numbers among options, where true and false are none, though Python counts with them."""

from typing import Annotated

from pydantic import BeforeValidator
from pydantic_core import PydanticKnownError


def _whole(given: object) -> object:
    if isinstance(given, bool):
        raise PydanticKnownError("int_type")
    return given


def _number(given: object) -> object:
    if isinstance(given, bool):
        raise PydanticKnownError("float_type")
    return given


Whole = Annotated[int, BeforeValidator(_whole, json_schema_input_type=int)]
"""A whole number."""
Number = Annotated[float, BeforeValidator(_number, json_schema_input_type=float)]
"""Any number."""
Bound = Annotated[int | float, BeforeValidator(_number, json_schema_input_type=int | float)]
"""Any number, whole as it was written."""
