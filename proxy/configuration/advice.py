"""What to write instead: pydantic's findings in the words of a configuration."""

import re
from collections.abc import Callable, Sequence
from functools import wraps
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from filters.base import AnswerFilter, RequestFilter
from proxy.configuration.fault import Place
from proxy.configuration.shelf import Shelf
from proxy.configuration.word import alternatives, quoted

_OWN = "advice"
_LIST = "write a list, such as [a, b]"
_KEYS = "write keys and values here"
_BOOL = "write true or false"
_INT = "write a whole number"
_NUMBER = "write a number"
_WORDS = {
    "string_type": "write text; put it in quotes if it looks like a number, or like true or false",
    "missing": "this key is missing; add it",
    "int_type": _INT,
    "int_parsing": _INT,
    "int_parsing_size": _INT,
    "int_from_float": _INT,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": _NUMBER,
    "bool_type": _BOOL,
    "bool_parsing": _BOOL,
    "list_type": _LIST,
    "tuple_type": _LIST,
    "set_type": _LIST,
    "frozen_set_type": _LIST,
    "dict_type": _KEYS,
    "mapping_type": _KEYS,
    "model_type": _KEYS,
    "model_attributes_type": _KEYS,
    "greater_than": "write a number above {gt}",
    "greater_than_equal": "write a number of at least {ge}",
    "less_than": "write a number below {lt}",
    "less_than_equal": "write a number of at most {le}",
    "string_too_short": "write at least {min_length} characters",
    "string_too_long": "write at most {max_length} characters",
    "too_short": "write at least {min_length} of them",
    "too_long": "write at most {max_length} of them",
}


def advising(check: Callable[..., Any]) -> Callable[..., Any]:
    """A check whose ValueError is known never to show the value, and so may always be shown itself."""

    @wraps(check)
    def checked(*given: Any) -> Any:
        try:
            return check(*given)
        except (ValidationError, PydanticCustomError):
            raise
        except ValueError as error:
            raise PydanticCustomError(_OWN, "{text}", {"text": str(error)}) from None

    return checked


def elsewhere(place: Place, message: str) -> ValidationError:
    """What is wrong below what a check was given, at its own place; the message never shows a value."""
    error = PydanticCustomError(_OWN, "{text}", {"text": message})
    return ValidationError.from_exception_data("advice", [{"type": error, "loc": place, "input": None}])


def advice(error: ErrorDetails, allowed: Sequence[str], *, private: bool) -> str:
    """What is wrong, and what to write; nothing of the value where it is private."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(str(error["loc"][-1]), allowed)
    if kind in {"literal_error", "enum"}:
        return _choice(error["input"], context["expected"])
    if instead := _other_shape(kind, error["input"]):
        return instead
    if kind in _WORDS:
        empty = "nothing is written here; " if error["input"] is None else ""
        return empty + _WORDS[kind].format(**context)
    if kind == _OWN or not private:
        return str(context.get("error") or error["msg"])
    return "this is not accepted (a value from the environment, which is not shown)"


def _other_shape(kind: str, given: Any) -> str:
    """What to write where a list stands for keys, or keys for a list; empty where neither does."""
    if _WORDS.get(kind) is _KEYS and isinstance(given, list):
        return f"{_KEYS}, without '- ' or [ ]"
    if _WORDS.get(kind) is _LIST and isinstance(given, dict):
        return "write a list; begin each item with '- '"
    return ""


def fields_at(root: Any, place: Place, shelf: Shelf) -> list[str]:
    """The keys that may stand at a place of a model, as they are written; empty where it is no model."""
    kind = root
    for key in place:
        kind = _inside(kind, key, shelf)
    return [field.alias or name for name, field in kind.model_fields.items()] if _is_model(kind) else []


def _inside(kind: Any, key: str | int, shelf: Shelf) -> Any:
    if kind in {RequestFilter, AnswerFilter}:
        return shelf.named(str(key), kind)
    if _is_model(kind):
        fields = {field.alias or name: field for name, field in kind.model_fields.items()}
        return _bare(fields[str(key)].annotation) if str(key) in fields else None
    inner = [each for each in get_args(kind) if each is not Ellipsis]
    return _bare(inner[-1]) if inner else None


def _bare(kind: Any) -> Any:
    """A type without the notes on it, and without ``None``; of several, the one that has keys."""
    if hasattr(kind, "__metadata__"):
        return _bare(kind.__origin__)
    if not isinstance(kind, UnionType) and get_origin(kind) is not Union:
        return kind
    some = [each for each in get_args(kind) if each is not type(None)]
    models = [each for each in some if _is_model(each)]
    return _bare((models or some)[0]) if models or len(some) == 1 else kind


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _unknown_key(name: str, allowed: Sequence[str]) -> str:
    if not quoted(name) and ":" in name:
        return f"unknown key; a space must follow the ':'{alternatives(name.partition(':')[0], allowed)}"
    return f"unknown key{quoted(name)}{alternatives(name, allowed) if allowed else '; take it out'}"


def _choice(given: Any, expected: str) -> str:
    known = re.findall(r"'([^']*)'", expected)
    wrong = quoted(given) if isinstance(given, str) else ""
    return (
        f"this cannot be{wrong or ' so'}{alternatives(str(given), known)}" if known else f"write {expected}"
    )
