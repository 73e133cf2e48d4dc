"""Bodies and queries as pydantic models, with errors that say what to write instead."""

import contextlib
from collections.abc import Mapping
from typing import Final, TypeVar

from pydantic import AfterValidator, BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request

from proxy.errors import RequestError, expected_type
from proxy.turn.request import mend_json

Model = TypeVar("Model", bound=BaseModel)

_EXPECTED: Final = "expected "
_ARRAY, _OBJECT = "expected an array", "expected an object"
_ADVICE: Final[Mapping[str, str]] = {
    "value_error": "{error}",  # of a check of ours
    "string_unicode": "expected a string in UTF-8",
    "list_type": _ARRAY,
    "dict_type": _OBJECT,
    "greater_than": "expected a number above {gt:g}",
    "greater_than_equal": "expected a number of at least {ge:g}",
    "less_than_equal": "expected a number of at most {le:g}",
    "string_too_short": "expected a string of {min_length} or more characters",
    "string_too_long": "expected a string of at most {max_length} characters",
    "literal_error": "expected {expected}",
}
_TYPES: Final = {"array": _ARRAY, "object": _OBJECT}


def validated(model: type[Model], body: bytes) -> Model:
    """A body as a value; raises RequestError, which names the field and never repeats what stood there.

    Half a character is no error, as it is none in a chat request.
    """
    try:
        try:
            return model.model_validate_json(body)
        except ValidationError as error:
            if not _is_no_json(error):
                raise
            with contextlib.suppress(ValueError, RecursionError):
                body = mend_json(body)
            return model.model_validate_json(body)
    except ValidationError as error:
        raise _request_error(error, model) from None


def validated_query(model: type[Model], request: Request) -> Model:
    """The query's parameters as a value; raises RequestError."""
    try:
        return model.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise _request_error(error, model) from None


def at_most(limit: int) -> AfterValidator:
    """Validates a number, which counts as ``limit`` where it is larger."""
    return AfterValidator(lambda number: min(number, limit))


def _request_error(error: ValidationError, model: type[BaseModel]) -> RequestError:
    """The first field's errors in one sentence."""
    details = error.errors(include_url=False, include_input=False)
    keys = ", ".join(model.model_fields)
    if _is_no_json(error):
        return RequestError(f"The body is not JSON; write an object with the keys: {keys}.")
    if not details[0]["loc"]:
        return RequestError(f"Write an object as JSON; its keys are: {keys}.")
    path = _path(details[0])
    details = [each for each in details if _path(each) == path]
    types = {each["type"] for each in details}
    if "extra_forbidden" in types:
        message = f"'{path}': unknown key; available: {keys}."
    elif "missing" in types:
        type_ = model.model_json_schema()["properties"][path].get("type", "")
        expected = _TYPES.get(type_) or expected_type(f"{type_}_type") or "expected a value"
        message = f"'{path}' is missing; {expected}. The keys are: {keys}."
    else:
        kinds = [(each["type"], each.get("ctx", {})) for each in details]
        advice = [
            (_ADVICE.get(kind) or expected_type(kind) or "expected another value").format(**context)
            for kind, context in kinds
        ]
        first, *others = dict.fromkeys(advice)
        message = f"'{path}': {' or '.join([first, *(other.removeprefix(_EXPECTED) for other in others)])}."
    return RequestError(message, param=path)


def _is_no_json(error: ValidationError) -> bool:
    return error.errors(include_url=False, include_input=False)[0]["type"] == "json_invalid"


def _path(error: ErrorDetails) -> str:
    """Where the error is; behind a name, only numbers are the client's: others say which type was tried."""
    name, *steps = error["loc"]
    return ".".join([str(name), *(str(step) for step in steps if isinstance(step, int))])
