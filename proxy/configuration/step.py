"""One step of a pipeline as YAML has it: a filter's name, or one name with its options."""

from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from filters.base import Filter
from proxy.configuration.plugin import failure
from proxy.configuration.shelf import Shelf
from proxy.configuration.word import is_word

F = TypeVar("F", bound=Filter)

_FORM = "write a filter's name, or one name with its options: 'drop_messages: {sources: [silence]}'"


def step(written: Any, kind: type[F], shelf: Shelf) -> F:
    """The filter that a step asks for, built.

    Raises ValueError; pydantic's own, placed under the filter's name, for wrong options.
    """
    options = {written: None} if isinstance(written, str) else written
    if not isinstance(options, dict) or len(options) != 1:
        raise ValueError(_shape(options))
    ((name, given),) = options.items()
    try:
        found = shelf.named(name, kind)
    except LookupError as error:
        raise ValueError(error.args[0]) from None
    return _built(name, found, {} if given is None else given)


def _shape(written: Any) -> str:
    """How a step is written, for one that is not one name."""
    if not isinstance(written, dict) or not written:
        return _FORM
    name, given = next(iter(written.items()))
    if given is None and is_word(name):
        return f"indent the options of {name!r} further than its name, or write '{name}: {{…}}' on one line"
    return "two steps stand here as one; begin each with '- '"


def _built(name: str, found: type[F], given: Any) -> F:
    try:
        # The dictionary around the filter puts its name into the place of each error.
        return TypeAdapter(dict[str, found]).validate_python({name: given})[name]  # type: ignore[valid-type]
    except ValidationError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's check may raise anything
        # Not a mere ValueError, whose text is always shown: this one may quote the options.
        said = f"the filter {name!r} does not take these options: {failure(error)}"
        raise PydanticCustomError("filter_failed", "{said}", {"said": said}) from None
