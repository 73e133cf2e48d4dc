"""The chain: request filters found by name, run one after the other, and nothing else."""

import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import TypeAdapter

from filters.base import AnswerFilter, Context, Fields, Filter, Messages, RequestFilter
from proxy.word import alternatives, quoted

F = TypeVar("F", bound=Filter)

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_STEP = "write a filter's name, or one name with its options: 'drop_messages: {sources: [silence]}'"


def run(filters: Iterable[RequestFilter], messages: Messages, context: Context) -> Messages:
    """The messages as the last filter leaves them."""
    for step in filters:
        messages = step.apply(messages, context)
    return messages


def set_fields(filters: Iterable[RequestFilter], fields: Fields, context: Context) -> Fields:
    """The request's other fields as the last filter leaves them."""
    for step in filters:
        fields = step.set(fields, context)
    return fields


def names(kind: type[Filter], package: str = "filters") -> tuple[str, ...]:
    """All filters of a kind that there are, in alphabetical order."""
    path = importlib.import_module(package).__path__
    found = (module.name for module in pkgutil.iter_modules(path))
    return tuple(sorted(name for name in found if _filter_in(name, kind, package)))


def filter_named(name: str, kind: type[F], package: str = "filters") -> type[F]:
    """The filter of a kind that a module of this name defines. Raises LookupError that says what there is."""
    found = _filter_in(name, kind, package)
    if found is None:
        raise LookupError(_unknown(name, kind, package))
    return found


def step(written: Any, kind: type[F], package: str = "filters") -> F:
    """A filter as one step of a pipeline asks for it: a name, or one name with its options.

    Raises ValueError; pydantic's own, placed under the filter's name, for wrong options.
    """
    options = {written: None} if isinstance(written, str) else written
    if not isinstance(options, dict) or len(options) != 1:
        raise ValueError(_STEP)
    ((name, given),) = options.items()
    try:
        found = filter_named(name, kind, package)
    except LookupError as error:
        raise ValueError(error.args[0]) from None
    # The dictionary around the filter puts its name into the place of each error.
    return TypeAdapter(dict[str, found]).validate_python({name: {} if given is None else given})[name]  # type: ignore[valid-type]


def _unknown(name: str, kind: type[Filter], package: str) -> str:
    other, side = (AnswerFilter, "answer") if kind is RequestFilter else (RequestFilter, "request")
    if _filter_in(name, other, package):
        return f"the filter {name!r} belongs under '{side}:'"
    return f"no filter named{quoted(name)}{alternatives(name, names(kind, package))}"


def _filter_in(name: str, kind: type[F], package: str) -> type[F] | None:
    if not _NAME.fullmatch(name) or importlib.util.find_spec(f"{package}.{name}") is None:
        return None
    module = importlib.import_module(f"{package}.{name}")
    found = (value for value in vars(module).values() if isinstance(value, type) and issubclass(value, kind))
    return next((each for each in found if _is_own(each, module.__name__)), None)


def _is_own(found: type[Filter], module: str) -> bool:
    return found.__module__ == module != Filter.__module__ and not found.__name__.startswith("_")
