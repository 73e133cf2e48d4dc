"""Messages about a configuration: where something is wrong, and what to write instead."""

import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import wraps
from typing import Any, Final

import msgspec
from pydantic import ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from proxy.settings.document import KeyPath

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

# What other programs call it; it counts where the right name can stand, and the wrong one cannot.
_SYNONYMS: Final = {
    "endpoint": "base_url",
    "filters": "request",
    "key": "api_key",
    "steps": "request",
    "store": "sessions",
    "url": "base_url",
}

_CUSTOM = "advice"
_LIST = "write a list, such as [a, b]"
_KEYS = "write keys and values here"
_BOOL = "write true or false"
_INT = "write a whole number"
_NUMBER = "write a number"
_ADVICE = {
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
"""What to write, by the type of pydantic's error."""


class Diagnostic(msgspec.Struct, frozen=True):
    """An error or a warning at one place of a file; lines count from 1."""

    file: str
    line: int
    path: str
    message: str

    def __str__(self) -> str:
        return f"{_one_line(self.file)}:{self.line}: {self.path}: {_one_line(self.message)}"


def _one_line(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]


def dotted_path(path: KeyPath) -> str:
    """A path as one reads it: ``pipelines.default.request.1``; the whole file is ``document``."""
    return ".".join(str(step) if is_name(str(step)) else "?" for step in path) or "document"


def is_name(text: str) -> bool:
    """Whether a message may quote a text: anything longer, or with other characters, may be a secret."""
    return bool(_NAME.fullmatch(text))


def quoted(text: str) -> str:
    """A name in quotes, with a space before it; empty where a message may not quote it."""
    literal = repr(text)
    return f" {literal}" if is_name(text) and literal == f"'{text}'" else ""


def alternatives(text: str, names: Iterable[str]) -> str:
    """The rest of a sentence about an unknown name: the nearest of the names, and all of them."""
    names = list(names)
    synonym = _SYNONYMS.get(text)
    near = [synonym] if synonym in names else get_close_matches(text, names, n=1)
    label = f"did you mean {near[0]!r}? Available" if near else "available"
    return f"; {label}: {', '.join(names)}" if names else "; there are none here"


def shown_errors(check: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a pydantic validator whose ValueError never quotes the value: its message is always shown."""

    @wraps(check)
    def checked(*args: Any) -> Any:
        try:
            return check(*args)
        except (ValidationError, PydanticCustomError):
            raise
        except ValueError as error:
            raise PydanticCustomError(_CUSTOM, "{text}", {"text": str(error)}) from None

    return checked


def error_at(path: KeyPath, message: str) -> ValidationError:
    """An error at a path below the value that is validated; its message never quotes a value."""
    error = PydanticCustomError(_CUSTOM, "{text}", {"text": message})
    return ValidationError.from_exception_data("advice", [{"type": error, "loc": path, "input": None}])


def error_advice(error: ErrorDetails, allowed: Sequence[str], *, private: bool) -> str:
    """What is wrong, and what to write; ``allowed`` are the keys that may stand there.

    A private value is not quoted.
    """
    kind, context, value = error["type"], error.get("ctx", {}), error["input"]
    advice = _ADVICE.get(kind)
    if kind == "extra_forbidden":
        name = str(error["loc"][-1])
        if not quoted(name) and ":" in name:
            return f"unknown key; a space must follow the ':'{alternatives(name.partition(':')[0], allowed)}"
        return f"unknown key{quoted(name)}{alternatives(name, allowed) if allowed else '; take it out'}"
    if kind in {"literal_error", "enum"}:
        expected, name = context["expected"], quoted(value) if isinstance(value, str) else ""
        choices = re.findall(r"'([^']*)'", expected)
        cannot = f"this cannot be{name or ' so'}"
        return f"{cannot}{alternatives(str(value), choices)}" if choices else f"write {expected}"
    if advice is _KEYS and isinstance(value, list):
        advice = f"{_KEYS}, without '- ' or [ ]"
    elif advice is _LIST and isinstance(value, dict):
        advice = "write a list; begin each item with '- '"
    if advice is not None:
        return ("nothing is written here; " if value is None else "") + advice.format(**context)
    if kind == _CUSTOM or not private:
        return str(context.get("error") or error["msg"])
    return "this is not accepted (a value from the environment, which is not shown)"
