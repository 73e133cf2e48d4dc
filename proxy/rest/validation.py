"""What to write instead: pydantic's findings in the words of a request."""

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from pydantic import AfterValidator, BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request

from proxy.errors import RequestError

Model = TypeVar("Model", bound=BaseModel)
_OURS: Final = "value_error"
"""What pydantic calls a fault that a check of ours has found."""
_WRITE: Final = "write "
_TEXT, _NUMBER, _WHOLE = "write text", "write a number", "write a whole number"
_ARRAY, _OBJECT, _BOOL = "write an array", "write an object", "write true or false"


def at_most(most: int) -> AfterValidator:
    """A number that counts as ``most`` where it is larger."""
    return AfterValidator(lambda number: min(number, most))


def validated(model: type[Model], written: bytes) -> Model:
    """The body as a value; raises RequestError, which names the field and never repeats what stood there."""
    try:
        return model.model_validate_json(written)
    except ValidationError as error:
        raise validation_error(error, model) from None


def validated_query(model: type[Model], request: Request) -> Model:
    """The query's parameters as a value; raises RequestError."""
    try:
        return model.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise validation_error(error, model) from None


_WORDS: Final[Mapping[str, str]] = {
    "string_type": _TEXT,
    "string_unicode": "write text that is UTF-8",
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_parsing_size": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": _NUMBER,
    "bool_type": _BOOL,
    "bool_parsing": _BOOL,
    "list_type": _ARRAY,
    "dict_type": _OBJECT,
    "greater_than": "write a number above {gt:g}",
    "greater_than_equal": "write a number of at least {ge:g}",
    "less_than_equal": "write a number of at most {le:g}",
    "string_too_short": "write text of {min_length} or more characters",
    "string_too_long": "write text of at most {max_length} characters",
    "literal_error": "write {expected}",
}


_KINDS: Final = {
    "string": _TEXT,
    "integer": _WHOLE,
    "number": _NUMBER,
    "boolean": _BOOL,
    "array": _ARRAY,
    "object": _OBJECT,
}


def validation_error(error: ValidationError, model: type[BaseModel]) -> RequestError:
    """What is wrong first with what was written for a model; it never repeats what stood there."""
    faults = error.errors(include_url=False, include_input=False)
    keys = ", ".join(model.model_fields)
    if not faults[0]["loc"]:
        return RequestError(_of_all(faults[0]["type"], keys))
    place = _place(faults[0])
    return RequestError(
        _of_one(place, [one for one in faults if _place(one) == place], model, keys), param=place
    )


def _place(fault: ErrorDetails) -> str:
    """Where it is; behind a name, only numbers are the client's: else it is which type was tried."""
    name, *behind = fault["loc"]
    return ".".join([str(name), *(str(step) for step in behind if isinstance(step, int))])


def _of_all(kind: str, keys: str) -> str:
    if kind == "json_invalid":
        return f"The body is not JSON; write an object with the keys: {keys}."
    return f"Write an object as JSON; its keys are: {keys}."


def _of_one(place: str, faults: Iterable[ErrorDetails], model: type[BaseModel], keys: str) -> str:
    kinds = {fault["type"] for fault in faults}
    if "extra_forbidden" in kinds:
        return f"'{place}': unknown key; there are: {keys}."
    if "missing" in kinds:
        wanted = model.model_json_schema()["properties"][place].get("type", "")
        return f"'{place}' is missing; {_KINDS.get(wanted, 'write it')}. The keys are: {keys}."
    return f"'{place}': {_either(map(_advice, faults))}."


def _either(words: Iterable[str]) -> str:
    first, *others = dict.fromkeys(words)
    return " or ".join([first, *(other.removeprefix(_WRITE) for other in others)])


def _advice(fault: ErrorDetails) -> str:
    context = fault.get("ctx", {})
    if fault["type"] == _OURS:
        return str(context["error"])
    return _WORDS.get(fault["type"], "write something else").format(**context)
