"""Messages about a configuration: where something is wrong, and what to write instead."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import wraps
from typing import Any, Final

import msgspec
from pydantic import AfterValidator, BeforeValidator, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError, PydanticUndefined

from proxy.errors import expected_type
from proxy.settings.document import KeyPath

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

# Names that other programs use, by which an unknown key is suggested another one.
_SYNONYMS: Final = {
    "endpoint": "base_url",
    "filters": "request",
    "key": "api_key",
    "steps": "request",
    "store": "sessions",
    "url": "base_url",
}

NO_UPSTREAM: Final = "no upstream named"
# In characters: a longer text in the place of a number may be a secret.
_MAX_QUOTED: Final = 12
_CUSTOM = "advice"
_LIST = "expected a list, such as [a, b]"
_KEYS = "expected keys and values"
_MISSING = "missing key; add it"
_ADVICE = {
    "missing": _MISSING,
    "list_type": _LIST,
    "tuple_type": _LIST,
    "set_type": _LIST,
    "frozen_set_type": _LIST,
    "dict_type": _KEYS,
    "mapping_type": _KEYS,
    "model_type": _KEYS,
    "model_attributes_type": _KEYS,
    "greater_than": "expected a number above {gt}",
    "greater_than_equal": "expected a number of at least {ge}",
    "less_than": "expected a number below {lt}",
    "less_than_equal": "expected a number of at most {le}",
    "string_too_short": "expected at least {min_length} characters",
    "string_too_long": "expected at most {max_length} characters",
    "too_short": "expected at least {min_length} items",
    "too_long": "expected at most {max_length} items",
}
"""The advice for a type of pydantic's errors, where ``expected_type`` has none."""


class Diagnostic(msgspec.Struct, frozen=True):
    """An error or a warning about a line of a file; lines count from 1."""

    file: str
    line: int
    path: str
    message: str

    def __str__(self) -> str:
        return f"{_one_line(self.file)}:{self.line}: {self.path}: {_one_line(self.message)}"


def _one_line(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]


def dotted_path(path: KeyPath) -> str:
    """A path for messages: ``pipelines.default.request.1`` is the first step; the top is ``document``."""
    steps = (str(step + 1 if isinstance(step, int) else step) for step in path)
    return ".".join(step if is_name(step) else "?" for step in steps) or "document"


def is_name(text: str) -> bool:
    """Whether a text has the form of a name, so that a message may quote it; any other may be a secret."""
    return bool(_NAME.fullmatch(text))


def quoted(text: str) -> str:
    """A name in quotes, with a space before it; empty where a message may not quote it."""
    literal = repr(text)
    return f" {literal}" if is_name(text) and literal == f"'{text}'" else ""


def alternatives(text: str, names: Iterable[str]) -> str:
    """The rest of a sentence about an unknown name: the nearest of the names, and all of them."""
    names = list(names)
    near = nearest(text, names)
    label = f"did you mean {near!r}? Available" if near else "available"
    return f"; {label}: {', '.join(names)}" if names else "; there are none here"


def nearest(text: str, names: Sequence[str]) -> str | None:
    """The name in ``names`` with nearly the same spelling, or with the same meaning; else ``None``."""
    synonym = _SYNONYMS.get(text)
    return synonym if synonym in names else next(iter(get_close_matches(text, names, n=1)), None)


def check_with(check: Callable[..., Any]) -> AfterValidator:
    """A validator with a check whose ValueError is always shown, so that it must not quote the value."""
    return AfterValidator(_with_shown_errors(check))


def parse_with(check: Callable[..., Any], written: Any = PydanticUndefined) -> BeforeValidator:
    """A validator like ``check_with`` for the value in the file, which has the type ``written``."""
    return BeforeValidator(_with_shown_errors(check), json_schema_input_type=written)


def _with_shown_errors(check: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(check)
    def checked(*args: Any) -> Any:
        try:
            return check(*args)
        except (ValidationError, PydanticCustomError):
            raise
        except ValueError as error:
            raise PydanticCustomError(_CUSTOM, "{text}", {"text": str(error)}) from None

    return checked


def _got(value: object) -> str:
    """The end of a message that describes the value; empty for a text."""
    if value is None:
        return ", got nothing"
    if isinstance(value, bool | int | float):
        return f", got {json.dumps(value)}"
    if isinstance(value, list | dict):
        return f", got {'a list' if isinstance(value, list) else 'keys and values'}"
    return ""


def error_at(path: KeyPath, message: str) -> ValidationError:
    """An error at a path within the validated value; the message must not quote a value."""
    error = PydanticCustomError(_CUSTOM, "{text}", {"text": message})
    return ValidationError.from_exception_data("advice", [{"type": error, "loc": path, "input": None}])


def error_advice(error: ErrorDetails, allowed: Sequence[str], written: Any, *, private: bool) -> str:
    """The message for an error, with what to write instead; ``allowed`` are the valid keys.

    ``written`` is the value, or the nearest one around it. Only a short word in the place of a number, a
    boolean or a choice is quoted; for a ``private`` value not even the error is.
    """
    variables = getattr(written, "variables", ())
    source = f" (from {', '.join(variables)})" if variables else ""
    kind, context, value = error["type"], error.get("ctx", {}), error["input"]
    if kind == "extra_forbidden":
        name = str(error["loc"][-1])
        if not quoted(name) and ":" in name:
            return f"unknown key; a space must follow the ':'{alternatives(name.partition(':')[0], allowed)}"
        return f"unknown key{quoted(name)}{alternatives(name, allowed) if allowed else '; take it out'}"
    if kind in {"literal_error", "enum"}:
        expected, name = context["expected"], quoted(value) if isinstance(value, str) else ""
        choices = re.findall(r"'([^']*)'", expected)
        rest = f"{source}{alternatives(str(value), choices)}"
        return f"invalid value{name}{rest}" if choices else f"expected {expected}{_got(value)}{source}"
    if advice := _ADVICE.get(kind) or expected_type(kind):
        return advice.format(**context) + _expected(kind, advice, value) + source
    if kind == _CUSTOM or not private:
        return str(context.get("error") or error["msg"])
    return "this is not accepted (a value from the environment, which is not shown)"


def _expected(kind: str, advice: str, value: object) -> str:
    """The end of a message that describes the value, and says how to write it in the right form."""
    if advice == _MISSING:
        return ""
    if advice == _KEYS and isinstance(value, list):
        return f"{_got(value)}; leave out '- ' and [ ]"
    if advice == _LIST and isinstance(value, dict):
        return f"{_got(value)}; begin each item with '- '"
    if kind == "string_type" and isinstance(value, bool | int | float):
        return f"{_got(value)}; put it in quotes"
    is_word = isinstance(value, str) and is_name(value) and len(value) <= _MAX_QUOTED
    return f", got '{value}'" if is_word and expected_type(kind) else _got(value)
