"""Names that stand in a configuration, and those that were meant."""

import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import wraps
from typing import Any, Final

import msgspec
from pydantic import ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from proxy.settings.document import KeyPath

# What others call it; it counts where the right word can stand, and the wrong one cannot.
_ELSEWHERE: Final = {
    "endpoint": "base_url",
    "filters": "request",
    "key": "api_key",
    "steps": "request",
    "store": "sessions",
    "url": "base_url",
}
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_OWN = "advice"
_LIST = "write a list, such as [a, b]"
_KEYS = "write keys and values here"
_BOOL = "write true or false"
_INT = "write a whole number"
_NUMBER = "write a number"


class Diagnostic(msgspec.Struct, frozen=True):
    """What is wrong at one place of a file, and what to write instead; lines count from 1."""

    file: str
    line: int
    path: str
    message: str

    def __str__(self) -> str:
        return f"{_one_line(self.file)}:{self.line}: {self.path}: {_one_line(self.message)}"


def dotted_path(place: KeyPath) -> str:
    """A place as one reads it: ``pipelines.default.request.1``; the whole file is ``document``."""
    return ".".join(str(step) if is_name(str(step)) else "?" for step in place) or "document"


def _one_line(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]


def is_name(text: str) -> bool:
    """Whether a text can be shown in a message: anything longer, or stranger, may be a slipped-in secret."""
    return bool(_WORD.fullmatch(text))


def quoted(text: str) -> str:
    """A name in quotes, with a space before it; empty where it is not one to show."""
    shown = repr(text)
    return f" {shown}" if is_name(text) and shown == f"'{text}'" else ""


def alternatives(text: str, known: Iterable[str]) -> str:
    """What may have been meant, and all that there is, as the rest of a sentence."""
    names = list(known)
    other = _ELSEWHERE.get(text)
    near = [other] if other in names else get_close_matches(text, names, n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    return f"; {meant}There are: {', '.join(names)}" if names else "; there are none here"


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


def shown_errors(check: Callable[..., Any]) -> Callable[..., Any]:
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


def error_at(place: KeyPath, message: str) -> ValidationError:
    """What is wrong below what a check was given, at its own place; the message never shows a value."""
    error = PydanticCustomError(_OWN, "{text}", {"text": message})
    return ValidationError.from_exception_data("advice", [{"type": error, "loc": place, "input": None}])


def error_advice(error: ErrorDetails, allowed: Sequence[str], *, private: bool) -> str:
    """What is wrong, and what to write; nothing of the value where it is private."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(str(error["loc"][-1]), allowed)
    if kind in {"literal_error", "enum"}:
        return _choice(error["input"], context["expected"])
    if instead := _other_shape(kind, error["input"]):
        return instead
    if kind in _ADVICE:
        empty = "nothing is written here; " if error["input"] is None else ""
        return empty + _ADVICE[kind].format(**context)
    if kind == _OWN or not private:
        return str(context.get("error") or error["msg"])
    return "this is not accepted (a value from the environment, which is not shown)"


def _other_shape(kind: str, given: Any) -> str:
    """What to write where a list stands for keys, or keys for a list; empty where neither does."""
    if _ADVICE.get(kind) is _KEYS and isinstance(given, list):
        return f"{_KEYS}, without '- ' or [ ]"
    if _ADVICE.get(kind) is _LIST and isinstance(given, dict):
        return "write a list; begin each item with '- '"
    return ""


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
