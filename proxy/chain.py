"""The chain: request filters found by name, run one after the other, and nothing else."""

import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Iterable
from typing import Any

from pydantic import TypeAdapter

from filters.base import Context, Messages, RequestFilter
from proxy.word import alternatives, quoted

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_STEP = "write a filter's name, or one name with its options: 'drop_messages: {sources: [silence]}'"


def run(filters: Iterable[RequestFilter], messages: Messages, context: Context) -> Messages:
    """The messages as the last filter leaves them."""
    for step in filters:
        messages = step.apply(messages, context)
    return messages


def names(package: str = "filters") -> tuple[str, ...]:
    """All filters there are, in alphabetical order."""
    path = importlib.import_module(package).__path__
    found = (module.name for module in pkgutil.iter_modules(path))
    return tuple(sorted(name for name in found if _filter_in(name, package)))


def filter_named(name: str, package: str = "filters") -> type[RequestFilter]:
    """The filter that a module of this name defines. Raises LookupError that says what there is."""
    found = _filter_in(name, package)
    if found is None:
        raise LookupError(f"no filter named{quoted(name)}{alternatives(name, names(package))}")
    return found


def step(written: Any, package: str = "filters") -> RequestFilter:
    """A filter as one step of a pipeline asks for it: a name, or one name with its options.

    Raises ValueError; pydantic's own, placed under the filter's name, for wrong options.
    """
    options = {written: None} if isinstance(written, str) else written
    if not isinstance(options, dict) or len(options) != 1:
        raise ValueError(_STEP)
    ((name, given),) = options.items()
    try:
        kind = filter_named(name, package)
    except LookupError as error:
        raise ValueError(error.args[0]) from None
    # The dictionary around the filter puts its name into the place of each error.
    return TypeAdapter(dict[str, kind]).validate_python({name: {} if given is None else given})[name]  # type: ignore[valid-type]


def _filter_in(name: str, package: str) -> type[RequestFilter] | None:
    if not _NAME.fullmatch(name) or importlib.util.find_spec(f"{package}.{name}") is None:
        return None
    module = importlib.import_module(f"{package}.{name}")
    return next((kind for kind in vars(module).values() if _is_filter_of(kind, module.__name__)), None)


def _is_filter_of(kind: object, module: str) -> bool:
    if not isinstance(kind, type) or not issubclass(kind, RequestFilter) or kind is RequestFilter:
        return False
    return kind.__module__ == module and not kind.__name__.startswith("_")
